# The kernel dies.
# lab-topology: loopback
# lab-limit: 60
echo "== dying"
echo c > /proc/sysrq-trigger
sleep 60
