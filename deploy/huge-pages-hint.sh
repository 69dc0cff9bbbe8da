#!/usr/bin/env bash
# Says what reserved huge pages would gain here, and the command. Changes nothing.
set -euo pipefail

reserved=$(cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages 2>/dev/null || echo 0)
transparent=$(cat /sys/kernel/mm/transparent_hugepage/enabled 2>/dev/null || echo "")
[ "$reserved" -gt 0 ] && exit 0
case "$transparent" in
    *"[never]"*)
        echo "hint       huge pages are off here: random rows cost a page-table walk each."
        echo "           To change that until the next boot: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled" ;;
    *)
        echo "hint       transparent huge pages are used; reserved ones are sure to be had after long uptimes:"
        echo "           echo 2200 > /proc/sys/vm/nr_hugepages   (for a model of 4 GiB)" ;;
esac
