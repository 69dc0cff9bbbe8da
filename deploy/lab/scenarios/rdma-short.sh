# The suite `rdma` of rowmill-bench, all of it and little of each: that it runs and that its answers are right. Its rates
# are of virtual machines and say nothing.
# lab-topology: pair
# lab-limit: 120 300
# lab-memory: 2G
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"
bench=$ROWMILL_PROGRAMS/bins/rowmill-bench

if [ "$NODE" = 1 ]; then
    "$bench" rdma --serve "$ROWMILL_RDMA_ADDRESS" || fail "the half that serves ended with $?"
else
    "$bench" rdma --peer "$ROWMILL_RDMA_PEER" --rounds 1 --share 20 --json > figures ||
        fail "rowmill-bench ended with $?"
    for metric in goodput latency_p50 rate wire_bytes; do
        grep -q "\"metric\":\"$metric\"" figures || fail "no figure of $metric"
    done
    say "$(wc -l < figures) figures"
fi
