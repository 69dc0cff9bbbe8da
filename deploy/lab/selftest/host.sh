# The lab on a host that has soft-RoCE, played in a virtual machine: once with a device that is there, once with a
# device that the lab makes and takes away.
# lab-topology: loopback
# lab-limit: 60 120
. "$ROWMILL_LAB/lib.sh"
export CARGO_TARGET_DIR=/tmp/target
lab=$ROWMILL_CHECKOUT/deploy/lab
log=$ROWMILL_LAB_SHARE/inner.log

# inner SCENARIO [ARGUMENTS]: the driver on this machine as the host.
inner() {
    local name=$1
    shift
    python3 "$lab/run.py" test --scenarios "$lab/selftest" --filter "^$name\$" "$@" > "$log"
}

# seen TEXT: the driver said so.
seen() {
    grep -qF "$1" "$log" || { cat "$log"; fail "the driver did not say: $1"; }
}

inner works || { cat "$log"; fail "on a device that is there"; }
seen 'on nic: the host has the software device rxe0 on dummy0'
inner two --ground nic || { cat "$log"; fail "two on one device"; }
seen "machine 2 can't be reset"

rdma link delete rxe0
inner works || { cat "$log"; fail "on a device that the lab makes"; }
seen "on rxe: the host's kernel has rdma_rxe"
! inner hangs || fail "what hangs has passed"
seen 'machine 1: over its limit'

[ -z "$(rdma link show)" ] || fail "a device is left: $(rdma link show)"
[ ! -e /sys/class/net/rowmill-lab ] || fail "a netdev is left"
! pgrep -f 'sleep 1000' > /dev/null || fail "a process is left"
say "nic and rxe"
