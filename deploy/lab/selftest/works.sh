# Two processes talk over the device; one that left the scenario's group stays behind for the driver to end.
# lab-topology: loopback
# lab-limit: 20 60
. "$ROWMILL_LAB/lib.sh"
setsid sleep 1000 &
serve timeout -k 3 20 rping -s -a "$ROWMILL_RDMA_ADDRESS" -C 10 -V
timeout -k 3 20 rping -c -a "$ROWMILL_RDMA_PEER" -C 10 -V || fail "rping"
figure a=b messages 10 count
say "works on $ROWMILL_LAB_GROUND"
