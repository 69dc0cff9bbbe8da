# Two of the faults that `faults` has, for which CI has time: the dataplane that rows are read from dies while READs are under way, and
# in the middle of changes.
# lab-topology: loopback
# lab-limit: 200 600
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"

ROWMILL_FAULTS_RDMA=$ROWMILL_RDMA_ADDRESS "$ROWMILL_PROGRAMS/bins/faults" --filter 'exporter-killed|midway-exporter' |
    tee "$ROWMILL_LAB_SHARE/faults.log" | say_faults || fail "faults of an exporter"
# One that is skipped here is tried nowhere in CI.
grep -q '^[1-9][0-9]* passed, 0 failed, 0 skipped' "$ROWMILL_LAB_SHARE/faults.log" || fail "not all were tried"
say "$(tail -1 "$ROWMILL_LAB_SHARE/faults.log")"
