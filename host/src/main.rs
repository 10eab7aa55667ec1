//! Entry point; the code is in the library.

fn main() -> std::process::ExitCode {
    pensieve::cli::run()
}
