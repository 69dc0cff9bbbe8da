#!/usr/bin/env bash
# Runs the commands of documents, those of the README where none is named: every `$ ` line, with its `> ` continuations,
# of the console blocks behind a line `<!-- ci -->`, in one shell a document, until one fails. Also compares the README's
# client example with the documentation of the client crate, where it is compiled.
set -euo pipefail
cd "$(dirname "$0")/.."

limit_s=600
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

run() {
    local document=$1
    awk '
        /^<!-- ci -->$/        { tagged = 1; next }
        tagged && /^```console/ { inside = 1; tagged = 0; next }
        /^```/                 { inside = 0; next }
        inside && /^\$ /       { print substr($0, 3); next }
        inside && /^> /        { print substr($0, 3) }
    ' "$document" >"$folder/commands"
    if [ ! -s "$folder/commands" ]; then
        echo "error: $document has no console block behind a line <!-- ci -->" >&2
        exit 1
    fi
    # -v shows each command as it is read. timeout leads a process group of its own, so what a failed run
    # leaves in the background is ended with the group.
    local status=0
    TMPDIR=$folder timeout --kill-after=10 "$limit_s" bash -ev "$folder/commands" </dev/null &
    local group=$!
    wait "$group" || status=$?
    kill -- -"$group" 2>/dev/null || true
    if [ $status -ne 0 ]; then
        echo "error: a command of $document failed (exit $status): the last one shown" >&2
        exit $status
    fi
    echo "$document: all commands of the tagged blocks ran"
}

sed -n 's|^//! \{0,1\}||p' ffi/client/src/lib.rs >"$folder/documented"
awk '/^```rust$/ { inside = 1; next } /^```/ { inside = 0 } inside && NF' README.md |
    while IFS= read -r line; do
        if ! grep -qxF -- "$line" "$folder/documented"; then
            echo "error: the README's client example has a line that the client crate's does not: $line" >&2
            exit 1
        fi
    done

if [ $# -eq 0 ]; then
    set -- README.md
fi
for document in "$@"; do
    run "$document"
done
