#!/bin/sh
# Installs Pensieve for the user who runs it, without root and without a compiler.
#
#     sh install.sh [--minimal | --cuda] [--version VERSION] [--prefix FOLDER] [--uninstall]
#
# PENSIEVE_RELEASES names another place for the archives than the project's own: a URL with the same layout, or a folder. The
# digests of this script's own release are part of it, so a mirror cannot change what is installed. For another version the
# list of digests is fetched, and its signature checked, by minisign or by openssl 3. Nothing of a release runs before its
# digest was compared; whatever fails, nothing is left behind.
#
# `.ci/release` fills in the lines between the marks.
set -eu
umask 022

# begin of this release
OWN_VERSION=''
LOCATION=''
KEY=''
# Target, kind, file, bytes, bytes when unpacked, digest, and the C library that it needs.
archives() {
    cat <<'END'
END
}
# end of this release

say() { printf '%s\n' "$*"; }
fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

usage() {
    say "usage: sh install.sh [--minimal | --cuda] [--version VERSION] [--prefix FOLDER] [--uninstall]

  --minimal          only the plugins llama, samplers and lora
  --cuda             plugins for NVIDIA GPUs
  --version VERSION  another version than $OWN_VERSION
  --prefix FOLDER    where bin and share are [default: ~/.local]
  --uninstall        remove what this script installed; models and settings stay

PENSIEVE_RELEASES names another place to get the archives from: a URL or a folder."
}

# The name that releases have for this machine.
find_target() {
    case $(uname -s) in
    Linux) system=linux ;;
    Darwin) system=macos ;;
    *) fail "there is no release for $(uname -s); build it from source with cargo" ;;
    esac
    case $(uname -m) in
    x86_64 | amd64) target=$system-x86_64 ;;
    aarch64 | arm64) target=$system-aarch64 ;;
    *) fail "there is no release for the processor $(uname -m); build it from source with cargo" ;;
    esac
}

# Sets `row`, the fields of an archive. Those of another version come out of its signed list, which has no sizes.
find_archive() {
    row=$(archives | while read -r of sort rest; do
        if [ "$of $sort" = "$target $1" ]; then say "$rest"; fi
    done)
    [ -n "$row" ] || fail "release $version has no archive for $target ($1); build it from source with cargo"
    # shellcheck disable=SC2086
    set -- $row
    file=$1 bytes=$2 unpacked=$3 digest=$4
    shift 4
    needs=$*
}

# Whether the version $1 is at least $2, like 2.28. Of 2.39.9000 the first two numbers count.
is_at_least() {
    minor=${1#*.}
    minor=${minor%%[!0-9]*}
    [ "${1%%.*}" -gt "${2%%.*}" ] || { [ "${1%%.*}" -eq "${2%%.*}" ] && [ "${minor:-0}" -ge "${2#*.}" ]; }
}

check_system() {
    case $needs in
    "glibc "*)
        found=$(getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>/dev/null | sed -n '1s/.* \([0-9][0-9]*\.[0-9.]*\)$/glibc \1/p' || true)
        case $found in
        "glibc "*) ;;
        *) fail "this system has no glibc, which plugins need ($needs or newer); use a container, or another system" ;;
        esac
        is_at_least "${found#glibc }" "${needs#glibc }" ||
            fail "this system has $found, and Pensieve $version needs $needs or newer; build it from source with cargo"
        ;;
    "macOS "*)
        found=$(sw_vers -productVersion 2>/dev/null || echo 0)
        [ "${found%%.*}" -ge "${needs#macOS }" ] || fail "this system is macOS $found, and Pensieve $version needs $needs or newer"
        ;;
    esac
}

# The nearest folder above a path that exists.
existing() {
    path=$1
    while [ ! -d "$path" ]; do path=$(dirname "$path"); done
    say "$path"
}

check_space() {
    needed=$(($1 / 1024 + 1024))
    free=$(df -Pk "$(existing "$root")" 2>/dev/null | awk 'NR == 2 { print $4 }')
    [ -z "$free" ] || [ "$free" -ge "$needed" ] ||
        fail "$((needed / 1024)) MiB are needed in '$root', and $((free / 1024)) are free"
}

# After a failed write: a full disk is a usual reason, and the tools say it in many ways.
why_not_written() {
    free=$(df -Pk "$work" 2>/dev/null | awk 'NR == 2 { print $4 }')
    if [ -n "$free" ] && [ "$free" -lt 1024 ]; then say "the disk is full"; else say "see above"; fi
}

# Copies a file of the release, by name, to a path.
fetch() {
    case $location in
    file://*) place=${location#file://} ;;
    *) place=$location ;;
    esac
    case $place in
    *://*)
        url=$place/download/v$version/$1
        if has curl; then
            curl --fail --silent --show-error --location --retry 2 --connect-timeout 20 --output "$2" "$url" ||
                fail "'$url' cannot be downloaded: $(why_not_written)"
        elif has wget; then
            wget -q -O "$2" "$url" || fail "'$url' cannot be downloaded: $(why_not_written)"
        else
            fail "neither curl nor wget is there to download with"
        fi
        ;;
    *)
        path=$place/$1
        [ -f "$path" ] || path=$place/download/v$version/$1
        [ -f "$path" ] || fail "'$place' has no file '$1'"
        cp "$path" "$2" || fail "'$path' cannot be copied: $(why_not_written)"
        ;;
    esac
}

sha256() {
    if has sha256sum; then
        sha256sum "$1"
    elif has shasum; then
        shasum -a 256 "$1"
    elif has openssl; then
        openssl dgst -sha256 -r "$1"
    else
        fail "neither sha256sum, shasum nor openssl is there to compare digests with"
    fi | cut -d ' ' -f 1
}

fetch_archive() {
    say "getting $file"
    fetch "$file" "$work/$file"
    found=$(($(wc -c <"$work/$file")))
    [ "$bytes" = - ] || [ "$found" -ge "$bytes" ] || fail "'$file' is cut off: it has $found of $bytes bytes"
    [ "$(sha256 "$work/$file")" = "$digest" ] || fail "'$file' is not the one of release $version: its digest is wrong; nothing of it was run"
}

unpack() {
    mkdir "$work/$1"
    case $file in
    *.gz) gzip -dc "$work/$file" ;;
    *.xz) xz -dc "$work/$file" ;;
    esac | tar -xf - -C "$work/$1" --strip-components=1 || fail "'$file' cannot be unpacked: $(why_not_written)"
    rm "$work/$file"
}

# Signatures of another version's digests. Its form is minisign's; openssl is what most systems have.
check_signature() {
    [ -n "$KEY" ] || fail "this installer has no key to check other versions with; use the one of release $version"
    comment=''
    if has minisign; then
        comment=$(minisign -VQm "$1" -x "$1.minisig" -P "$KEY" 2>/dev/null) || fail "the signature of release $version does not match"
    elif has openssl && openssl list -digest-algorithms 2>/dev/null | grep -qi blake2b512 && openssl version | grep -q '^OpenSSL [3-9]'; then
        decoded() { openssl base64 -d -A; }
        { printf '\060\052\060\005\006\003\053\145\160\003\041\000' && printf %s "$KEY" | decoded | tail -c 32; } >"$work/key"
        sed -n 2p "$1.minisig" | decoded | tail -c 64 >"$work/signature"
        sed -n 4p "$1.minisig" | decoded >"$work/global"
        comment=$(sed -n '3s/^trusted comment: //p' "$1.minisig")
        openssl dgst -blake2b512 -binary "$1" >"$work/hash"
        { cat "$work/signature" && printf %s "$comment"; } >"$work/signed"
        for pair in hash:signature signed:global; do
            openssl pkeyutl -verify -pubin -keyform DER -inkey "$work/key" -rawin -in "$work/${pair%:*}" \
                -sigfile "$work/${pair#*:}" >/dev/null 2>&1 || fail "the signature of release $version does not match"
        done
    else
        fail "neither minisign nor openssl 3 is there to check the signature of release $version with; use its own install.sh"
    fi
    [ "$comment" = "pensieve release" ] || fail "the signature of release $version is for another kind of document"
}

# Takes the list of another version in the place of this script's own.
read_digests() {
    fetch SHA256SUMS "$work/SHA256SUMS"
    fetch SHA256SUMS.minisig "$work/SHA256SUMS.minisig"
    check_signature "$work/SHA256SUMS"
    list=$(while read -r sum name; do
        case $name in
        pensieve-"$version"-*-minimal.tar.gz) sort=minimal of=${name%-minimal.tar.gz} ;;
        pensieve-"$version"-*-cuda.tar.xz) sort=cuda of=${name%-cuda.tar.xz} ;;
        pensieve-"$version"-*.tar.xz) sort=full of=${name%.tar.xz} ;;
        *) continue ;;
        esac
        say "${of#pensieve-"$version"-} $sort $name - 0 $sum"
    done <"$work/SHA256SUMS")
    archives() { say "$list"; }
}

# Makes a folder, and notes which ones are new.
make_folder() {
    if [ ! -d "$1" ]; then
        make_folder "$(dirname "$1")"
        mkdir "$1" 2>/dev/null || fail "'$1' cannot be made: is '$(dirname "$1")' yours, and is there room on the disk?"
        made="$1
$made"
    fi
}

# Keeps other installers and updates away. The lock is a link to this process's number, made in one step; one of a process that
# is gone does not count.
lock() {
    lock=$root/versions/.lock
    if ! ln -s "$$" "$lock" 2>/dev/null; then
        holder=$(readlink "$lock" || true)
        case $holder in
        '' | *[!0-9]*) ;;
        *)
            if ! kill -0 "$holder" 2>/dev/null; then
                rm -f "$lock"
                ! ln -s "$$" "$lock" 2>/dev/null || holder=''
            fi
            ;;
        esac
        [ -z "$holder" ] && [ -L "$lock" ] ||
            fail "another installation is at work in '$root' (process ${holder:-unknown}); wait for it, or if there is none, remove '$lock'"
    fi
    locked=yes
}

# The link to the version in use; empty if there is none.
current() { readlink "$root/current" 2>/dev/null || true; }

# Puts links and versions back as they were before `place`.
take_back() {
    if [ "$(current)" != "$before" ]; then
        rm -f "$root/current"
        [ -z "$before" ] || ln -s "$before" "$root/current" || say "'$root/current' has to be a link to '$before'" >&2
    fi
    [ -z "$is_new_program" ] || rm -f "$program"
    [ -e "$work/unpacked" ] || rm -rf "$installed"
}

clean() {
    status=$?
    trap - EXIT HUP INT TERM
    [ -z "$locked" ] || rm -f "$root/versions/.lock"
    if [ -n "$work" ]; then
        [ "$status" = 0 ] || [ -z "$placing" ] || take_back
        if [ -e "$work/replaced" ] && [ ! -e "$installed" ]; then mv "$work/replaced" "$installed" || exit 1; fi
        rm -rf "$work"
    fi
    if [ "$status" != 0 ]; then
        printf %s "$made" | while read -r folder; do rmdir "$folder" 2>/dev/null || true; done
    fi
    exit "$status"
}

# Whether a path is a link that this script made.
is_own_link() { [ -L "$1" ] && [ "$(readlink "$1")" = ../share/pensieve/current/bin/pensieve ]; }

# Puts the new version in its place. The same one, if it is there, goes only with the work folder, when all is done; until then
# `clean` puts everything back.
place() {
    [ ! -e "$installed" ] || mv "$installed" "$work/replaced" || fail "'$installed' cannot be replaced"
    before=$(current) is_new_program=''
    placing=yes
    mv "$work/unpacked" "$installed" || fail "'$installed' cannot be made: $(why_not_written)"
    ln -sfn "versions/$version" "$root/current" || fail "'$root/current' cannot be made: $(why_not_written)"
    if ! is_own_link "$program"; then
        is_new_program=yes
        ln -s ../share/pensieve/current/bin/pensieve "$program" || fail "'$program' cannot be made: $(why_not_written)"
    fi
}

install() {
    find_target
    { [ ! -e "$program" ] && [ ! -L "$program" ]; } || is_own_link "$program" ||
        fail "'$program' is there already, and this script did not put it there; move it away, or name another --prefix"
    [ -n "$location" ] || fail "this installer names no place for its archives; set PENSIEVE_RELEASES"
    [ ! -e "$root/current" ] || [ -L "$root/current" ] ||
        fail "'$root/current' is there already, and is no link; move it away, or name another --prefix"
    made='' work='' locked='' placing='' installed=$root/versions/$version
    trap clean EXIT
    trap 'exit 1' HUP INT TERM
    make_folder "$root/versions"
    make_folder "$prefix/bin"
    for folder in "$root" "$root/versions" "$prefix/bin"; do
        [ -w "$folder" ] || fail "'$folder' cannot be written to: install as its owner, or name another --prefix"
    done
    lock
    work=$(mktemp -d "$root/versions/.new-XXXXXX") || fail "'$root/versions' cannot be written to"
    [ "$version" = "$OWN_VERSION" ] || read_digests
    find_archive "$kind"
    check_system
    two='' first=0
    case $file in
    *.xz)
        if ! has xz; then
            # The program unpacks what this system cannot.
            wanted=$row two=yes
            find_archive minimal
            [ "$bytes" = - ] || first=$((bytes + unpacked))
            row=$wanted
        fi
        ;;
    esac
    [ -z "$two" ] || say "xz is not installed: the small archive comes first, and unpacks the whole one"
    check_space "$(needed_bytes "$first")"
    if [ -n "$two" ]; then
        fetch_archive
        unpack first
        find_archive "$kind"
        fetch_archive
        mkdir "$work/unpacked"
        "$work/first/bin/pensieve" unpack "$work/$file" "$work/unpacked" >/dev/null || fail "'$file' cannot be unpacked: $(why_not_written)"
    else
        fetch_archive
        unpack unpacked
    fi
    answer=$("$work/unpacked/bin/pensieve" --version 2>&1) || fail "the program does not run on this system: $answer"
    [ "$answer" = "pensieve $version" ] || fail "the program says '$answer', and should be version $version"
    place
    say "Pensieve $version is installed: $program"
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) say "'$prefix/bin' is not in PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
    if [ "$kind" = minimal ] && grep -q '"index": {' "$installed/origin.json"; then say "other families than Llama's: pensieve plugins search"; fi
    say "try: pensieve run \"list all files\"; as a service: pensieve service install"
}

# Bytes that the archives of `row`, and of a first one, take.
needed_bytes() {
    # shellcheck disable=SC2086
    set -- "$1" $row
    [ "$3" != - ] || { say 0 && return; }
    say $(($1 + $3 + $4))
}

# Whether the user's service starts a program of this installation. Its file names it by a path without links, as systemd and
# launchd quote it.
has_own_service() {
    home=${HOME:-/nonexistent}
    real=$(cd "$root" 2>/dev/null && pwd -P) || return 1
    unit=$(say "$real" | sed 's/%/%%/g')
    agent=$(say "$real" | sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g')
    grep -qsF -e "ExecStart=$unit/" -e "ExecStart=\"$unit/" "${XDG_CONFIG_HOME:-$home/.config}/systemd/user/pensieve.service" ||
        grep -qsF -e "<string>$agent/" "$home/Library/LaunchAgents/pensieve.plist"
}

uninstall() {
    [ -d "$root/versions" ] || is_own_link "$program" || fail "nothing is installed in '$prefix'"
    # It goes with the folder.
    [ ! -d "$root/versions" ] || lock
    # A service of this program would have nothing to start. One of another installation stays.
    if [ -x "$root/current/bin/pensieve" ] && has_own_service; then "$root/current/bin/pensieve" service remove || true; fi
    ! is_own_link "$program" || rm "$program" || fail "'$program' cannot be removed"
    rm -rf "${root:?}/versions" "${root:?}/current" || fail "'$root' cannot be removed"
    rmdir "$root" "$prefix/share" "$prefix/bin" "$prefix" 2>/dev/null || true
    say "Pensieve is removed from '$prefix'; models, plugins and settings are still in ${PENSIEVE_HOME:-~/.pensieve}"
}

main() {
    kind=full version=$OWN_VERSION action=install
    location=${PENSIEVE_RELEASES:-$LOCATION}
    prefix=${PENSIEVE_PREFIX:-${HOME:-}/.local}
    while [ $# -gt 0 ]; do
        case $1 in
        --minimal) kind=minimal ;;
        --cuda) kind=cuda ;;
        --uninstall) action=uninstall ;;
        --version | --prefix)
            [ $# -gt 1 ] || fail "$1 takes a value"
            if [ "$1" = --version ]; then version=${2#v}; else prefix=$2; fi
            shift
            ;;
        --help | -h) usage && exit 0 ;;
        *) fail "there is no option $1; --help lists them" ;;
        esac
        shift
    done
    case $version in '' | *[!0-9A-Za-z.+-]*) fail "'$version' is no version" ;; esac
    case $prefix in
    /?*) ;;
    *) fail "'$prefix' is no absolute path; name one with --prefix" ;;
    esac
    prefix=${prefix%/}
    root=$prefix/share/pensieve program=$prefix/bin/pensieve
    $action
}

# All of it was read: a script that is cut off does nothing.
main "$@"
