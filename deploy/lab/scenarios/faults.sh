# The real rowmilld over RDMA: every fault that is not of shared memory's own or of files, each beside an innocent client
# whose answers are compared bit by bit.
# lab-topology: loopback
# lab-limit: 300 900
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"

wanted='^(request-.*|id-.*|key-unknown|feature-unknown|schema-overlapping|target-.*|block-overflow|partials-unsupported'
wanted="$wanted|limits-reached|region-given-up|client-vanishes|deadline-passed|overload|sigterm-in-flight|sigkill)\$"
ROWMILL_FAULTS_RDMA=$ROWMILL_RDMA_ADDRESS "$ROWMILL_PROGRAMS/bins/faults" --filter "$wanted" | tee "$ROWMILL_LAB_SHARE/faults.log" ||
    fail "faults over RDMA"
grep -q '^[1-9][0-9]* passed, 0 failed' "$ROWMILL_LAB_SHARE/faults.log" || fail "no fault was tried"
say "$(tail -1 "$ROWMILL_LAB_SHARE/faults.log")"
