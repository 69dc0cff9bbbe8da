#!/usr/bin/env bash
# Installs what building rowmill needs beside Rust: a C linker. Does nothing where all is there.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "error: cargo is not on the PATH; install Rust (https://rustup.rs), then try again" >&2
    exit 1
fi
missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "error: as root, run: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "installing ${missing[*]}"
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
