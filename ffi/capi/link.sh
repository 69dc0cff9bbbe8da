#!/usr/bin/env bash
# Links librowmill.so from the archive that cargo makes of this crate: ffi/capi/link.sh [FOLDER], where cargo puts programs.
#
# The archive is linked again by the C compiler, since rustc's own version script leaves no room for named versions: see
# https://github.com/cyphar/libpathrs/issues/38 and /issues/318, where versions were lost without a word. test-c.sh reads them
# back. -z nodelete: threads, fork handlers and the SIGBUS handler can't be unloaded.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-${CARGO_TARGET_DIR:-$here/../../target}/release}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")

"${CC:-cc}" -shared -o "$folder/librowmill.so.$version" \
    -Wl,--whole-archive "$folder/librowmill_capi.a" -Wl,--no-whole-archive \
    -Wl,--version-script="$here/rowmill.map" -Wl,-soname,librowmill.so.0 \
    -Wl,--gc-sections -Wl,-z,defs,-z,now,-z,relro,-z,nodelete -Wl,--as-needed \
    -lrdmacm -libverbs -lgcc_s -lpthread -lm -ldl -lc
echo "$folder/librowmill.so.$version"
