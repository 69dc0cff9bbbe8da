# What a worker of rowmilld calls the kernel for while it serves: its doorbells and nothing else, by count.
# lab-topology: loopback
# lab-limit: 60 240
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"

"$ROWMILL_PROGRAMS/bins/rowmill-bench" rdma --syscalls "$ROWMILL_RDMA_ADDRESS" --json > figures || fail "see above"
say "$(sed 's/.*"metric":"\([a-z_]*\)","value":\([0-9.]*\).*/\1 \2/' figures | paste -sd,)"
cat figures >> "$ROWMILL_LAB_SHARE/figures.json"
