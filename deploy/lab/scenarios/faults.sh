# The real rowmilld over RDMA: every fault that is not of shared memory's own, of files or of two machines, each beside an
# innocent client whose answers are compared bit by bit.
# lab-topology: loopback
# lab-limit: 400 1200
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"

# Files, starts and admin pages are the same over any port: they are tried over shared memory.
ROWMILL_FAULTS_RDMA=$ROWMILL_RDMA_ADDRESS "$ROWMILL_PROGRAMS/bins/faults" |
    tee "$ROWMILL_LAB_SHARE/faults.log" | say_faults || fail "faults over RDMA"
grep -q '^[1-9][0-9]* passed, 0 failed' "$ROWMILL_LAB_SHARE/faults.log" || fail "no fault was tried"
say "$(tail -1 "$ROWMILL_LAB_SHARE/faults.log")"
