# Two machines meet and talk, where one of them can't be reset.
# lab-topology: uml-pair
# lab-limit: 30
. "$ROWMILL_LAB/lib.sh"
barrier first
if [ "$NODE" = 1 ]; then
    serve timeout -k 3 20 rping -s -a "$ROWMILL_RDMA_ADDRESS" -C 10 -V
    barrier serving
    wait $server || fail "rping, serving"
    ! (vm_reset 2) || fail "what can't be reset was reset"
else
    barrier serving
    timeout -k 3 20 rping -c -a "$ROWMILL_RDMA_PEER" -C 10 -V || fail "rping"
fi
barrier last
figure "node=$NODE" messages 10 count
say "two on $ROWMILL_LAB_GROUND"
