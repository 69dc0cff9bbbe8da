# The real rowmilld and an innocent client on machine 1, another client on machine 2: its link loses everything, then its
# machine is reset; each time what it had is freed, and it connects again.
# lab-topology: pair
# lab-limit: 150 600
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"
faults=$ROWMILL_PROGRAMS/bins/faults
export ROWMILL_FAULTS_FAR=$ROWMILL_LAB_SHARE/far
mkdir -p "$ROWMILL_FAULTS_FAR"

if [ "$NODE" = 1 ]; then
    {
        wait_until $((6 * ROWMILL_TEST_PATIENCE)) test -e "$ROWMILL_FAULTS_FAR/reset.ready" || exit 1
        touch "$ROWMILL_FAULTS_FAR/reset.asked"
        vm_reset 2
    } &
    ROWMILL_FAULTS_RDMA=$ROWMILL_RDMA_ADDRESS "$faults" --filter '^far-' |
        tee "$ROWMILL_LAB_SHARE/pair-faults.log" | say_faults || fail "faults between two machines"
    grep -q '^2 passed, 0 failed' "$ROWMILL_LAB_SHARE/pair-faults.log" || fail "not both faults were tried"
    barrier end
elif [ "$BOOT" = 1 ]; then
    ROWMILL_FAULTS_RDMA=$ROWMILL_RDMA_PEER "$faults" --far link || fail "the client whose link fails"
    ROWMILL_FAULTS_RDMA=$ROWMILL_RDMA_PEER "$faults" --far reset
    fail "nobody has reset this machine"
else
    ROWMILL_FAULTS_RDMA=$ROWMILL_RDMA_PEER "$faults" --far again || fail "the client after the reset"
    barrier end
fi
