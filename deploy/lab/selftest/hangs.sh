# Hangs, and doesn't want to be ended.
# lab-topology: loopback
# lab-limit: 5
trap '' TERM
echo "== hanging"
while :; do sleep 1; done
