#!/usr/bin/env bash
# Installs what tests and faults need beside what building does: Redis, of which the control plane reads deltas. Debian's redis-tools has the
# server, too, under another of its names; redis-server would also have the machine run one. Does nothing where all is there.
set -euo pipefail

command -v redis-cli >/dev/null && command -v redis-check-rdb >/dev/null && exit 0
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "error: as root, run: apt-get install redis-tools" >&2
        exit 1
    fi
    sudo=sudo
fi
echo "installing redis-tools"
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends redis-tools
