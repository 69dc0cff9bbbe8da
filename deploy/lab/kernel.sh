#!/usr/bin/env bash
# kernel.sh FOLDER PACKAGE VERSION: FOLDER/vmlinuz and FOLDER/initrd.gz from Debian's kernel package, which is
# unpacked and never installed. The initrd holds busybox, the modules that ./modules names, and ./init.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
package=$2 version=$3
release=${package#linux-image-}
mkdir -p "$1/work"
cd "$1/work"

apt-get -qq -o APT::Sandbox::User=root download "$package=$version"
dpkg -x "$package"_*.deb package
cp "package/boot/vmlinuz-$release" ../vmlinuz
depmod -b package "$release"

mkdir -p initrd/{bin,proc,sys,dev,mnt,modules}
cp /bin/busybox initrd/bin/
cp "$here/init" initrd/init
chmod 755 initrd/init
while read -r module; do
    modprobe -d package -S "$release" --show-depends "$module"
done < "$here/modules" | awk '/^insmod/ && !seen[$2]++ {print $2}' | while read -r file; do
    cp "$file" initrd/modules/
    basename "$file"
done > initrd/modules/order
(cd initrd && find . | cpio --quiet --create --format=newc --owner=0:0) | gzip -1 > ../initrd.gz
rm -rf ../work
