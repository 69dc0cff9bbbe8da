# A client on another machine: its link fails, its dataplane is killed, its machine is reset; each time it notices, is
# fenced, and connects again. A reader of another machine's memory: its link fails, its exporter is killed, with READs in flight.
# lab-topology: pair
# lab-limit: 120 400
# lab-programs: tests
. "$ROWMILL_LAB/lib.sh"
tests=$ROWMILL_PROGRAMS/tests/rowmill-port.rdma
mark=$ROWMILL_LAB_SHARE/mark

# dataplane NAME [ROLE]: starts one, or an exporter; its endpoint is in the file endpoint.NAME.
dataplane() {
    ROWMILL_RDMA_ROLE=${2:-server} "$tests" --exact ends::another_process --nocapture > "dataplane.$1" 2>&1 &
    dataplane=$!
    wait_until "$ROWMILL_TEST_PATIENCE" grep -q '^endpoint ' "dataplane.$1" || fail "no dataplane"
    sed -n 's/^endpoint //p' "dataplane.$1" > "$ROWMILL_LAB_SHARE/endpoint.$1"
}

# far NAME TEST: runs a test of the port against the other machine's dataplane.
far() {
    ROWMILL_RDMA_ENDPOINT=$(cat "$ROWMILL_LAB_SHARE/endpoint.$1") ROWMILL_RDMA_MARK=$mark.$2 \
        timeout -k 3 "$((2 * ROWMILL_TEST_PATIENCE))" "$tests" --exact "far::$2" --nocapture > "$ROWMILL_LAB_SHARE/log.$2" 2>&1 ||
        { cat "$ROWMILL_LAB_SHARE/log.$2"; fail "$2"; }
    say "$2: $(grep -E ' after ' "$ROWMILL_LAB_SHARE/log.$2" | tail -2 | paste -sd ';')"
}

if [ "$NODE" = 1 ]; then
    dataplane exporter exporter
    barrier exporter
    wait_until "$ROWMILL_TEST_PATIENCE" test -e "$mark.an_exporter_that_is_killed_amid_reads_is_noticed" || fail "no mark"
    kill -9 $dataplane
    barrier vanished
    dataplane first
    barrier first
    barrier link
    wait_until "$ROWMILL_TEST_PATIENCE" test -e "$mark.a_server_that_is_killed_far_away_is_lost" || fail "no mark"
    kill -9 $dataplane
    barrier killed
    dataplane second
    barrier second
    wait_until "$ROWMILL_TEST_PATIENCE" test -e "$mark.a_session_that_is_cut" || fail "no mark"
    vm_reset 2
    barrier again
    kill -9 $dataplane
elif [ "$BOOT" = 1 ]; then
    barrier exporter
    far exporter an_exporter_out_of_reach_is_noticed_amid_reads
    far exporter an_exporter_that_is_killed_amid_reads_is_noticed
    barrier vanished
    barrier first
    far first a_link_that_fails_is_noticed_and_fenced
    barrier link
    far first a_server_that_is_killed_far_away_is_lost
    barrier killed
    barrier second
    far second a_session_that_is_cut
    fail "nobody has reset this machine"
else
    far second a_machine_that_was_reset_connects_again
    barrier again
fi
