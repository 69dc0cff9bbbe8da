# Fails, and its partner waits for it.
# lab-topology: pair
# lab-limit: 60
. "$ROWMILL_LAB/lib.sh"
say "machine $NODE is here"
[ "$NODE" = 2 ] || exit 3
barrier never
