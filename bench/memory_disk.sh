# memory_disk.sh BYTES FOLDER: mounts a disk in memory (zram, for root alone) on a folder that is there, says "ready", and takes it away
# when standard input ends: that it does, too, when who started this is killed.
set -eu
bytes=$1 folder=$2
control=/sys/class/zram-control

number=$(cat "$control/hot_add")
block=/sys/block/zram$number device=/dev/zram$number
take_away() {
    # A service that was killed with who started this may have a file open for a moment.
    tries=0
    while mountpoint -q "$folder" && ! umount "$folder" 2> /dev/null && [ $((tries += 1)) -lt 100 ]; do sleep 0.1; done
    echo 1 > "$block/reset"
    echo "$number" > "$control/hot_remove"
    rmdir "$folder"
}
trap take_away EXIT

echo "$bytes" > "$block/disksize"
mkfs.ext4 -q -m 0 -O ^has_journal -E nodiscard "$device"
mount -o noatime "$device" "$folder"
echo ready
cat > /dev/null
