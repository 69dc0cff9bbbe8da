# memory_disk.sh BYTES FOLDER: mounts a disk in memory (zram, for root alone) on a folder that is there, says "ready", and takes both away
# when standard input ends: that it does, too, when who started this is killed.
set -eu
bytes=$1 folder=$2
control=/sys/class/zram-control

# Reading `hot_add` makes a device: not where it could not be taken away.
if ! [ -w "$control/hot_remove" ]; then
    echo "$control/hot_remove: not there, or not for this user to write (zram, as root)" >&2
    exit 1
fi
# Who started this may be gone before it hears of anything.
trap '' PIPE
number=$(cat "$control/hot_add")
block=/sys/block/zram$number device=/dev/zram$number

unmount() { umount "$folder"; }
reset() { echo 1 > "$block/reset" && echo "$number" > "$control/hot_remove"; }
# For ten seconds: a service that was killed may have files open for a moment, and others look at any new device.
try() {
    tries=0
    until "$1" 2> /dev/null; do
        if [ $((tries += 1)) -ge 100 ]; then
            echo "$device on $folder is left behind: $1 fails" >&2
            return 1
        fi
        sleep 0.1
    done
}
take_away() {
    set +e
    trap '' HUP INT TERM
    mountpoint -q "$folder" && try unmount
    try reset && rmdir "$folder"
}
trap take_away EXIT
trap 'exit 1' HUP INT TERM

echo "$bytes" > "$block/disksize"
mkfs.ext4 -q -m 0 -O ^has_journal -E nodiscard "$device"
mount -o noatime "$device" "$folder"
echo ready
cat > /dev/null
