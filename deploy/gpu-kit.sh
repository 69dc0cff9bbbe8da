#!/usr/bin/env bash
# Collects what `make test-gpu` runs in one folder that can be carried to a machine with a GPU and nothing else:
# target/gpu-kit, whose run.sh runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
most=$((40 << 20))
programs=${CARGO_TARGET_DIR:-target}/release
kit=target/gpu-kit

cargo build --release --lib --bins
rm -rf "$kit"
mkdir -p "$kit"
for program in rowmilld rowmill rowmill-gpu-tests; do
    strip -o "$kit/$program" "$programs/$program"
done
# The Python package as a wheel would install it, and its tests.
mkdir "$kit/python"
cp -r ffi/python/python/rowmill ffi/python/tests ffi/python/pyproject.toml "$kit/python/"
strip -o "$kit/python/rowmill/_rowmill.abi3.so" "$programs/lib_rowmill.so"
cp deploy/gpu-python.sh "$kit/"
# The libraries of the port over RDMA, and what those need beside the C library.
ldd "$programs/rowmilld" | awk '/libibverbs|librdmacm|libnl/ {print $3}' | while read -r library; do
    cp -L "$library" "$kit/"
done
cat > "$kit/run.sh" <<'END'
#!/usr/bin/env bash
# Runs the tests that need a GPU; BYTES of model, results to RESULTS.
here=$(cd "$(dirname "$0")" && pwd)
export LD_LIBRARY_PATH=$here${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
failed=0
"$here/rowmill-gpu-tests" "${BYTES:-1073741824}" "${RESULTS:-$here/results.json}" || failed=1
ROWMILL_PROGRAMS=$here "$here/gpu-python.sh" "$here/python" || failed=1
exit $failed
END
chmod +x "$kit/run.sh"
bytes=$(du -sb "$kit" | cut -f1)
[ "$bytes" -le "$most" ] || { echo "error: $kit has $bytes bytes, more than $most" >&2; exit 1; }
echo "$kit: $bytes bytes; run $kit/run.sh where the GPU is"
