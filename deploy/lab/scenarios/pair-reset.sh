# Machine 2 is reset while it is connected; it comes back with the same address, and machine 1 takes it again.
# lab-topology: pair
# lab-limit: 60 180
. "$ROWMILL_LAB/lib.sh"

if [ "$NODE" = 1 ]; then
    serve rping -s -P -a "$ROWMILL_RDMA_ADDRESS" -S 4096 > rping.log 2>&1
    barrier first
    barrier connected
    vm_reset 2
    say "asked for the reset of machine 2"
    barrier again
    kill $server
    say "machine 2 is back, and connected again"
elif [ "$BOOT" = 1 ]; then
    barrier first
    rping -c -a "$ROWMILL_RDMA_PEER" -S 4096 > rping.log 2>&1 &
    sleep 1
    kill -0 $! || { cat rping.log; fail "rping ended before the reset"; }
    say "connected"
    barrier connected
    sleep "$ROWMILL_TEST_PATIENCE"
    fail "nobody has reset this machine"
else
    say "boot $BOOT"
    # The other side may know the old connection still and refuse the first tries.
    tries=0
    began=$SECONDS
    until timeout -k 3 10 rping -c -a "$ROWMILL_RDMA_PEER" -C 10 > rping.log 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 20 ] || { cat rping.log; fail "no connection after the reset"; }
        sleep 0.5
    done
    say "connected again after $((SECONDS - began)) s and $tries refusals"
    barrier again
fi
