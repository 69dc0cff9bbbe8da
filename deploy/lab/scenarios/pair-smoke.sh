# Two machines talk over RDMA: connections, writes, and a link that goes down and comes back.
# lab-topology: pair
# lab-limit: 60 180
. "$ROWMILL_LAB/lib.sh"
limit="timeout -k 3 $ROWMILL_TEST_PATIENCE"

ping -q -c 1 -W 5 "$ROWMILL_RDMA_PEER" > /dev/null || fail "no way to $ROWMILL_RDMA_PEER"

# pings NAME: 100 messages there and back, compared byte by byte; machine 1 serves.
pings() {
    if [ "$NODE" = 1 ]; then
        serve $limit rping -s -a "$ROWMILL_RDMA_ADDRESS" -C 100 -V
        barrier "$1"
        wait $server || fail "rping, serving ($1)"
    else
        barrier "$1"
        $limit rping -c -a "$ROWMILL_RDMA_PEER" -C 100 -V || fail "rping ($1)"
        say "rping: 100 messages, compared ($1)"
    fi
}

pings first

if [ "$NODE" = 1 ]; then
    serve $limit ib_write_bw -R -d "$ROWMILL_LAB_DEVICE" -s 65536 -n 500 --output=bandwidth
    barrier write
    wait $server || fail "ib_write_bw, serving"
else
    barrier write
    mib=$($limit ib_write_bw -R -d "$ROWMILL_LAB_DEVICE" -s 65536 -n 500 --output=bandwidth "$ROWMILL_RDMA_PEER") ||
        fail "ib_write_bw"
    mb=$(awk "BEGIN {printf \"%.1f\", $mib * 1.048576}")
    say "ib_write_bw: 64 KiB at $mb MB/s (not judged here)"
    figure size=65536 goodput "$mb" MB/s
fi

barrier written
if [ "$NODE" = 1 ]; then
    link_down
    say "link down"
    barrier down
    barrier gone
    link_up
    barrier up
else
    barrier down
    ! ping -q -c 1 -W 1 "$ROWMILL_RDMA_PEER" > /dev/null || fail "the link is down and carries packets"
    ! timeout -k 3 5 rping -c -a "$ROWMILL_RDMA_PEER" -C 1 > /dev/null 2>&1 || fail "the link is down and carries RDMA"
    barrier gone
    barrier up
    wait_until "$ROWMILL_TEST_PATIENCE" ping -q -c 1 -W 1 "$ROWMILL_RDMA_PEER" || fail "the link does not come back"
    say "link back"
fi
pings again

if [ "$NODE" = 2 ]; then
    netem delay 20ms || fail "netem"
    ms=$(ping -q -c 3 -i 0.2 "$ROWMILL_RDMA_PEER" | sed -n 's#.*= [0-9.]*/\([0-9]*\)\..*#\1#p')
    netem off
    [ "$ms" -ge 20 ] || fail "netem delays by $ms ms instead of 20"
    say "netem: 20 ms asked for, $ms ms seen"
fi
barrier end
