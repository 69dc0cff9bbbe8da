# What perftest reaches between two machines whose user code runs at native speed: what our own rates stand beside.
# lab-topology: uml-pair
# lab-limit: 120
# lab-kind: bench
. "$ROWMILL_LAB/lib.sh"
limit="timeout -k 3 $ROWMILL_TEST_PATIENCE"

# measured NAME COMMAND...: runs a perftest between the two; machine 2 prints what it said. perftest takes the
# clock rate by a regression over short waits; where the host is busy it complains of that, and then refuses to
# report or reports nonsense: once more.
measured() {
    local name=$1 try said server
    shift
    for try in {1..10}; do
        if [ "$NODE" = 1 ]; then
            serve $limit "$@" > /dev/null 2>&1
            barrier "$name-$try"
        else
            barrier "$name-$try"
            if said=$($limit "$@" "$ROWMILL_RDMA_PEER" 2> refused) && ! grep -q Correlation refused; then
                touch "$ROWMILL_LAB_SHARE/measured.$name"
                echo "$said"
            fi
        fi
        barrier "$name-$try-end"
        if [ "$NODE" = 1 ]; then
            kill $server 2> /dev/null || true # after a refusal it would wait for ever
            wait $server || true
        fi
        [ ! -e "$ROWMILL_LAB_SHARE/measured.$name" ] || return 0
    done
    fail "$name: perftest does not report: $(cat refused)"
}

for shape in 4096:5000 65536:1000 1048576:100; do
    size=${shape%:*}
    mib=$(measured "bw-$size" ib_write_bw -R -d "$ROWMILL_LAB_DEVICE" -s "$size" -n "${shape#*:}" --output=bandwidth)
    [ "$NODE" = 2 ] || continue
    mb=$(awk "BEGIN {printf \"%.1f\", $mib * 1.048576}")
    say "ib_write_bw $size B: $mb MB/s"
    figure "size=$size" goodput "$mb" MB/s
done

for size in 64 4096; do
    said=$(measured "lat-$size" ib_write_lat -R -d "$ROWMILL_LAB_DEVICE" -s $size -n 2000)
    [ "$NODE" = 2 ] || continue
    # Columns: bytes, iterations, min, max, typical, average, deviation, 99 %, 99.9 %.
    read -r p50 p99 < <(awk -v size=$size '$1 == size {print $5, $8}' <<< "$said")
    say "ib_write_lat $size B: p50 $p50 us, p99 $p99 us"
    figure size=$size p50 "$p50" us
    figure size=$size p99 "$p99" us
done
