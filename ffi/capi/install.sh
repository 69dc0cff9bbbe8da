#!/usr/bin/env bash
# Installs library, header and pkg-config file: ffi/capi/install.sh PREFIX [FOLDER], where cargo puts programs. DESTDIR is put
# before the prefix where files go, for packages.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
prefix=${1:?usage: ffi/capi/install.sh PREFIX [FOLDER]}
built=$("$here/link.sh" ${2:+"$2"})
version=${built##*.so.}
to=${DESTDIR:-}$prefix

install -d "$to/lib/pkgconfig" "$to/include"
strip --strip-debug -o "$to/lib/librowmill.so.$version" "$built"
ln -sf "librowmill.so.$version" "$to/lib/librowmill.so.0"
ln -sf librowmill.so.0 "$to/lib/librowmill.so"
install -m 644 "$here/include/rowmill.h" "$to/include/rowmill.h"
sed -e "s|@prefix@|$prefix|" -e "s|@version@|$version|" "$here/rowmill.pc.in" >"$to/lib/pkgconfig/rowmill.pc"
echo "installed librowmill $version in $to: pkg-config --cflags --libs rowmill (PKG_CONFIG_PATH=$prefix/lib/pkgconfig)"
