#!/usr/bin/env bash
# Installs what building rowmill needs beside Rust: a C compiler and linker, and for RDMA libibverbs and librdmacm with
# libclang, through which bindgen makes Rust declarations of their headers. Does nothing where all is there.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "error: cargo is not on the PATH; install Rust (https://rustup.rs), then try again" >&2
    exit 1
fi
missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v pkg-config >/dev/null || missing+=(pkg-config)
pkg-config --exists libibverbs 2>/dev/null || missing+=(libibverbs-dev)
pkg-config --exists librdmacm 2>/dev/null || missing+=(librdmacm-dev)
# bindgen loads libclang.so, which reads its own stddef.h. LIBCLANG_PATH names another place.
has() { ls "$@" >/dev/null 2>&1; }
[ -n "${LIBCLANG_PATH:-}" ] || { has /usr/lib/llvm-*/lib/libclang.so* && has /usr/lib/llvm-*/lib/clang/*/include/stddef.h; } ||
    missing+=(libclang-dev)
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
