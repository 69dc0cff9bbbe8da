# The lab on a host that has soft-RoCE, played in a virtual machine: once with a device that is there, once with a
# device that the lab makes and takes away.
# lab-topology: loopback
# lab-limit: 60 120
. "$ROWMILL_LAB/lib.sh"
export CARGO_TARGET_DIR=/tmp/target
inner="python3 $ROWMILL_CHECKOUT/deploy/lab/run.py test --scenarios $ROWMILL_CHECKOUT/deploy/lab/selftest --filter"

$inner ^works$ > "$ROWMILL_LAB_SHARE/nic.log" || { cat "$ROWMILL_LAB_SHARE/nic.log"; fail "on a device that is there"; }
grep -q 'on nic: the host has the software device rxe0 on dummy0' "$ROWMILL_LAB_SHARE/nic.log" || fail "another ground than nic"

rdma link delete rxe0
$inner ^works$ > "$ROWMILL_LAB_SHARE/rxe.log" || { cat "$ROWMILL_LAB_SHARE/rxe.log"; fail "on a device that the lab makes"; }
grep -q "on rxe: the host's kernel has rdma_rxe" "$ROWMILL_LAB_SHARE/rxe.log" || fail "another ground than rxe"

! $inner ^hangs$ > "$ROWMILL_LAB_SHARE/hangs.log" || fail "what hangs has passed"
grep -q 'machine 1: over its limit' "$ROWMILL_LAB_SHARE/hangs.log" || { cat "$ROWMILL_LAB_SHARE/hangs.log"; fail "what hangs was not ended by its limit"; }

[ -z "$(rdma link show)" ] || fail "a device is left: $(rdma link show)"
[ ! -e /sys/class/net/rowmill-lab ] || fail "a netdev is left"
! pgrep -f 'sleep 1000' > /dev/null || fail "a process is left"
say "nic and rxe"
