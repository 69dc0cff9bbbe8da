#!/usr/bin/env bash
# uml.sh FOLDER VERSION: builds FOLDER/linux, a user-mode Linux with soft-RoCE, from that version of Debian's
# package linux-source-6.1. The package is unpacked in FOLDER, never installed. About 4 minutes on two cores.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
version=$2
mkdir -p "$1/work"
cd "$1/work"

apt-get -qq -o APT::Sandbox::User=root download "linux-source-6.1=$version"
dpkg -x linux-source-6.1_*.deb package
tar xf package/usr/src/linux-source-6.1.tar.xz
cd linux-source-6.1
export KBUILD_BUILD_USER=rowmill KBUILD_BUILD_HOST=lab KBUILD_BUILD_TIMESTAMP=@0
nice make -s ARCH=um KCONFIG_ALLCONFIG="$here/uml.fragment" allnoconfig
# What the configuration didn't take over would be missing without a word.
missing=$(grep -vxFf .config <(grep '^CONFIG_' "$here/uml.fragment") || true)
if [ -n "$missing" ]; then
    echo "error: this kernel knows no such options:" $missing >&2
    exit 1
fi
nice make -s ARCH=um -j"$(nproc)" linux
strip -o ../../linux linux
rm -rf ../../work
