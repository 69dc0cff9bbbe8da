# Hangs, in user-mode Linux.
# lab-topology: uml-pair
# lab-limit: 5
trap '' TERM
echo "== hanging"
sleep 1000 &
while :; do sleep 1; done
