#!/usr/bin/env bash
# Installs what tests and faults need beside what building does: Redis, of which the control plane reads deltas, and libfaketime, by which the
# clock of programs jumps. Debian's redis-tools has the server, too, under another of its names; redis-server would also have the machine run
# one. Does nothing where all is there.
set -euo pipefail

packages=()
command -v redis-cli >/dev/null && command -v redis-check-rdb >/dev/null || packages+=(redis-tools)
ls /usr/lib/*-linux-gnu/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || packages+=(libfaketime)
[ ${#packages[@]} -eq 0 ] && exit 0
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "error: as root, run: apt-get install ${packages[*]}" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "installing ${packages[*]}"
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${packages[@]}"
