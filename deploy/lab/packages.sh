#!/usr/bin/env bash
# packages.sh GROUP...: installs what the lab and `make targets` need on the host, where it is missing. Kernels are not among it:
# their packages are only unpacked, in the cache.
set -euo pipefail

wanted=()
for group in "$@"; do
    case $group in
    python) wanted+=(python3) ;;
    bench) wanted+=(fio valgrind) ;; # what the file tier is compared with, and what counts instructions
    rdma) wanted+=(rdma-core ibverbs-providers ibverbs-utils perftest rdmacm-utils iproute2 iputils-ping strace) ;;
    qemu) wanted+=(qemu-system-x86 busybox-static cpio kmod) ;;
    uml) wanted+=(busybox-static gcc libc6-dev make flex bison bc xz-utils) ;;
    *) echo "error: no group of packages is named $group" >&2; exit 2 ;;
    esac
done
missing=()
for package in "${wanted[@]}"; do
    case $(dpkg-query -W -f='${Status}' "$package" 2>/dev/null) in
    "install ok installed") ;;
    *) missing+=("$package") ;;
    esac
done
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
$sudo timeout -k 3 300 apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo timeout -k 3 600 \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
