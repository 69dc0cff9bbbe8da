# What a scenario has at hand; it begins with `. "$ROWMILL_LAB/lib.sh"`.
set -euo pipefail
# A command substitution ends with its first command that fails, as the script does. In a condition (if, !, &&, ||) bash ignores
# that still: functions for conditions are made so that their last command tells.
shopt -s inherit_errexit

# say TEXT...: a line that the driver shows while the scenario runs.
say() {
    printf '== %s\n' "$*"
}

# fail TEXT...: the end.
fail() {
    say "FAILED: $*" >&2
    exit 1
}

# wait_until SECONDS COMMAND...: tries COMMAND until it succeeds; fails when the time is over.
wait_until() {
    local ends=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        [ $SECONDS -lt $ends ] || return 1
        sleep 0.05
    done
}

# barrier NAME: waits for the other machine to come to the same barrier. Each name is for one use.
barrier() {
    local other=$((3 - NODE)) ends=$((SECONDS + ROWMILL_TEST_PATIENCE))
    touch "$ROWMILL_LAB_SHARE/barrier.$1.$NODE"
    until [ -e "$ROWMILL_LAB_SHARE/barrier.$1.$other" ]; do
        [ ! -e "$ROWMILL_LAB_SHARE/rc.$other" ] || fail "barrier $1: machine $other has ended"
        [ $SECONDS -lt $ends ] || fail "barrier $1: machine $other did not come in $ROWMILL_TEST_PATIENCE s"
        sleep 0.05
    done
}

# say_faults: passes on what the program `faults` prints, and says what became of each fault.
say_faults() {
    sed -uE 's/^(PASS|FAIL|SKIPPED) /== &/'
}

# figure CASE METRIC VALUE UNIT: a line of figures.json, in the format of rowmill-bench --json.
figure() {
    [[ $3 =~ ^[0-9]+(\.[0-9]+)?$ ]] || fail "$1 $2 is no number: $3"
    local own='"suite":"lab","case":"%s","metric":"%s","value":%s,"unit":"%s"'
    local other='"against":null,"against_value":null,"ratio":null'
    printf "{$own,$other}\n" "$ROWMILL_LAB_SCENARIO/$1" "$2" "$3" "$4" >> "$ROWMILL_LAB_SHARE/figures.json"
}

link_down() {
    ip link set "$ROWMILL_LAB_NETDEV" down
}

link_up() {
    ip link set "$ROWMILL_LAB_NETDEV" up
}

# netem ARGUMENTS...: delay, loss and so on of what this machine sends, as in `netem delay 2ms loss 1%`;
# `netem off` ends it. Fails where the kernel has no netem.
netem() {
    if [ "$1" = off ]; then
        tc qdisc del dev "$ROWMILL_LAB_NETDEV" root
    else
        tc qdisc replace dev "$ROWMILL_LAB_NETDEV" root netem "$@"
    fi
}

# vm_reset NODE: the driver pulls that machine's reset line, or kills the kernel that it is; it boots and runs the scenario
# with BOOT=2.
vm_reset() {
    local request="$ROWMILL_LAB_SHARE/request.reset.$1"
    # Not `touch`: who answers may take the file away before its times are set.
    : > "$request"
    wait_until 20 test ! -e "$request" || fail "the driver did not reset machine $1"
    [ ! -e "$request.refused" ] || fail "machine $1 can't be reset"
}

# rdma_listens: somebody waits for connections of rdma_cm.
rdma_listens() {
    rdma resource show cm_id 2> /dev/null | grep -q 'state LISTEN'
}

# serve COMMAND...: starts a server of rdma_cm in the background, and waits until it listens.
serve() {
    "$@" &
    server=$!
    wait_until "$ROWMILL_TEST_PATIENCE" rdma_listens || fail "$1 does not listen"
}
