# The faults of `pair-faults` and `faults` where user code runs at native speed: what is told and freed within 10 s under
# emulation has to be so within 2 s here.
# lab-topology: uml-pair
# lab-limit: 540
# lab-memory: 2G
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"
scenarios=$ROWMILL_CHECKOUT/deploy/lab/scenarios

# On a device of the host machine 2 is this one: it can't be reset, nor may its link be made to fail.
[ "$ROWMILL_LAB_GROUND" != uml ] || bash "$scenarios/pair-faults.sh"
[ "$NODE" = 2 ] || bash "$scenarios/faults.sh"
