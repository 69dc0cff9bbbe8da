# The service over RDMA beside what the device itself does, between two machines whose user code runs at native
# speed: the suite `rdma` of rowmill-bench.
# lab-topology: uml-pair
# lab-limit: 400
# lab-kind: bench
# lab-memory: 2G
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"
bench=$ROWMILL_PROGRAMS/bins/rowmill-bench

if [ "$NODE" = 1 ]; then
    "$bench" rdma --serve "$ROWMILL_RDMA_ADDRESS" || fail "the half that serves ended with $?"
else
    "$bench" rdma --peer "$ROWMILL_RDMA_PEER" --json 2>&1 >> "$ROWMILL_LAB_SHARE/figures.json" | sed -u 's/^rdma: /== /'
fi
