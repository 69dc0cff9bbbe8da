# The RDMA device is what it should be, and every test program passes on it.
# lab-topology: loopback
# lab-limit: 300 900
# lab-programs: tests
. "$ROWMILL_LAB/lib.sh"

rdma link show
ibv_devinfo -d "$ROWMILL_LAB_DEVICE" > "$ROWMILL_LAB_SHARE/devinfo" || fail "ibv_devinfo"
grep -E 'hca_id|transport|state|max_mtu|active_mtu|link_layer' "$ROWMILL_LAB_SHARE/devinfo"
grep -q 'PORT_ACTIVE' "$ROWMILL_LAB_SHARE/devinfo" || fail "the port of $ROWMILL_LAB_DEVICE is not active"
mtu=$(awk '$1 == "active_mtu:" {print $2}' "$ROWMILL_LAB_SHARE/devinfo")
say "$ROWMILL_LAB_DEVICE on $ROWMILL_LAB_NETDEV, address $ROWMILL_RDMA_ADDRESS, path MTU $mtu"

serve timeout -k 3 "$ROWMILL_TEST_PATIENCE" rping -s -a "$ROWMILL_RDMA_ADDRESS" -C 100 -V
timeout -k 3 "$ROWMILL_TEST_PATIENCE" rping -c -a "$ROWMILL_RDMA_PEER" -C 100 -V || fail "rping"
wait $server || fail "rping, serving"
say "rping: 100 messages, compared"

failed=()
programs=0
tests=0
for program in "$ROWMILL_PROGRAMS"/tests/*; do
    name=${program##*/}
    log=$ROWMILL_LAB_SHARE/test.$name.log
    began=$SECONDS
    status=0
    timeout -k 3 $((5 * ROWMILL_TEST_PATIENCE)) "$program" --test-threads=1 --show-output > "$log" 2>&1 ||
        status=$?
    skipped=$(grep -c '^skipped:' "$log" || true)
    result=$(sed -n 's/^test result: [a-zA-Z]*. //p' "$log" | tail -1 | cut -d';' -f1-3)
    say "$name: exit $status in $((SECONDS - began)) s: ${result:-no result}; $skipped skipped"
    programs=$((programs + 1))
    [[ ! $result =~ ^[0-9]+ ]] || tests=$((tests + BASH_REMATCH[0]))
    [ $status -eq 0 ] || failed+=("$name")
done
[ $programs -gt 0 ] || fail "there is no test program"
for name in "${failed[@]}"; do
    echo "---- $name"
    tail -n 60 "$ROWMILL_LAB_SHARE/test.$name.log"
done
[ ${#failed[@]} -eq 0 ] || fail "${failed[*]}"
say "$programs test programs passed, with $tests tests"
