# Written by .ci/release, for a tap: brew install OWNER/TAP/pensieve
class Pensieve < Formula
  desc "Local inference server whose model architectures are plugins"
  homepage "@HOMEPAGE@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    depends_on arch: :arm64
    depends_on macos: :sequoia
    url "@LOCATION@/download/v@VERSION@/pensieve-@VERSION@-macos-aarch64.tar.xz"
    sha256 "@macos-aarch64@"
  end

  on_linux do
    on_intel do
      url "@LOCATION@/download/v@VERSION@/pensieve-@VERSION@-linux-x86_64.tar.xz"
      sha256 "@linux-x86_64@"
    end
    on_arm do
      url "@LOCATION@/download/v@VERSION@/pensieve-@VERSION@-linux-aarch64.tar.xz"
      sha256 "@linux-aarch64@"
    end
  end

  def install
    bin.install "bin/pensieve"
    (lib/"pensieve").install Dir["lib/pensieve/*"]
    # By it 'pensieve update' knows that it is brew's to replace.
    prefix.install "origin.json"
    doc.install Dir["share/doc/pensieve/*"]
    generate_completions_from_executable(bin/"pensieve", "completions")
  end

  service do
    run [opt_bin/"pensieve", "serve"]
    keep_alive successful_exit: false
    log_path var/"log/pensieve.log"
    error_log_path var/"log/pensieve.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/pensieve --version")
    assert_match "ls", shell_output("#{bin}/pensieve run --model starter 'list all files'")
  end
end
