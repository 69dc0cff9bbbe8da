# Two machines meet and talk; then machine 2 is reset if it has a kernel of its own.
# lab-topology: uml-pair
# lab-limit: 30
. "$ROWMILL_LAB/lib.sh"
if [ "$NODE" = 1 ]; then
    serve timeout -k 3 20 rping -s -a "$ROWMILL_RDMA_ADDRESS" -C 10 -V
    barrier serving
    wait $server || fail "rping, serving"
    barrier talked
    if [ "$ROWMILL_LAB_GROUND" = uml ]; then
        vm_reset 2
    else
        ! (vm_reset 2) || fail "what can't be reset was reset"
    fi
elif [ "$BOOT" = 1 ]; then
    barrier serving
    timeout -k 3 20 rping -c -a "$ROWMILL_RDMA_PEER" -C 10 -V || fail "rping"
    barrier talked
    if [ "$ROWMILL_LAB_GROUND" = uml ]; then
        sleep "$ROWMILL_TEST_PATIENCE"
        fail "nobody has reset this machine"
    fi
fi
barrier last
figure "node=$NODE" messages 10 count
say "two on $ROWMILL_LAB_GROUND"
