# Rows read from another dataplane's memory: answers of a cached table whose own file has been cut off are those of a dataplane that has
# all of it in memory; the exporter is killed under load, and rows come from the model's own files; it is back, and they come from there
# again; asked after the files, it gives what these don't; another generation is loaded, of which rows come from there too.
# lab-topology: loopback
# lab-limit: 120 400
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"

rowmill=$ROWMILL_PROGRAMS/bins/rowmill
rowmilld=$ROWMILL_PROGRAMS/bins/rowmilld
patience_ms=$((ROWMILL_TEST_PATIENCE * 1000))
exported=rdma://$ROWMILL_RDMA_ADDRESS:7404

"$rowmill" table generate model --table items:20000:128:f32 --table keyed:4000:64:int8 > generate.log
cp -r model copy
"$rowmill" table generate second --generation 2 --seed 2 --table items:20000:128:f32 --table keyed:4000:64:int8 >> generate.log

# config FILE SOCKET PORT DIRECTORY
config() {
    cat > "$1" <<EOF
endpoints = ["shm:$PWD/$2.sock"]
insecure = true
[model]
directory = "$PWD/$4"
name = "demo"
huge_pages = "off"
[workers]
cpus = 1
pin = false
[limits]
connections = 8
[admin]
address = "127.0.0.1:$3"
allow_changes = true
EOF
}

# reading FILE TRIED: the lines of a dataplane that reads rows from the exporter.
reading() {
    cat >> "$1" <<EOF
[[tables]]
name = "items"
placement = "cached"
cache_bytes = 262144
[cache]
page_cache = "allow"
budget_ms = $((ROWMILL_TEST_PATIENCE * 1000))
[remote]
url = "$exported"
tried = "$2"
budget_ms = 2000
EOF
}

config exporter.toml exporter 7411 model
printf '[export]\nlisten = "%s"\nlease_ms = 2000\n' "$exported" >> exporter.toml
config before.toml before 7412 copy
reading before.toml before
config after.toml after 7413 copy
reading after.toml after

sed 's/^insecure = true/insecure = false/' exporter.toml > secure.toml
! "$rowmilld" --config secure.toml --check > secure.log 2>&1 || fail "it exports without saying insecure"
grep -q 'insecure = true' secure.log || fail "the refusal does not say what to do: $(cat secure.log)"
say "refused as it should be: $(grep export secure.log | tail -1)"

status() {
    "$rowmill" status --admin "127.0.0.1:$1" --json | tr -d ' \n'
}
serves() {
    status "$1" | grep -q '"state":"serving"'
}
start() {
    "$rowmilld" --config "$1.toml" >> "$ROWMILL_LAB_SHARE/$1.log" 2>&1 &
    started=$!
    wait_until "$ROWMILL_TEST_PATIENCE" serves "$2" || { cat "$ROWMILL_LAB_SHARE/$1.log"; fail "$1 does not serve"; }
}
# remote PORT KEY: what a reader says of its exporter.
remote() {
    status "$1" | grep -o '"remote":\[{[^]]*}\]' | grep -o "\"$2\":[^,}]*" | cut -d: -f2 | tr -d '"'
}
is_connected() {
    [ "$(remote "$1" state)" = connected ]
}
is_apart() {
    [ "$(remote "$1" state)" = apart ]
}
# arrived PORT TIER: rows that came from a tier.
arrived() {
    status "$1" | grep -o '{[^{}]*"tier":"'"$2"'"[^{}]*}' | grep -o '"arrived":[0-9]*' | cut -d: -f2 | head -1
}

start exporter 7411; exporter=$started
start before 7412; before=$started
start after 7413; after=$started
for port in 7412 7413; do
    wait_until "$ROWMILL_TEST_PATIENCE" is_connected $port || fail "not connected: $(status $port)"
done
say "connected, with $(remote 7412 reads_in_flight) READs in flight and a lease of $(remote 7412 lease_ms) ms"

# ask SOCKET ARGUMENTS...: the answer without its times.
ask() {
    local socket=$1
    shift
    timeout -k 3 "$ROWMILL_TEST_PATIENCE" "$rowmill" lookup "shm:$PWD/$socket.sock" "$@" --deadline-ms "$patience_ms" --full 2>&1 |
        sed "s/, served in .*//; s,$PWD/$socket.sock,,"
}
# same READER: many rows, in answers that are equal to those of the one that has them in memory.
same() {
    local step first
    for step in 3 7 11 19; do
        first=$(( (step * 37 + ${asked:-0}) % 100 ))
        local ids
        ids=$(seq -s, $first $step 19999)
        ids=$(echo "$ids" | cut -d, -f1-1500)
        ask exporter --table items --ids "$ids" > one || fail "the exporter refuses: $(cat one)"
        ask "$1" --table items --ids "$ids" > other || fail "$1 refuses: $(cat other)"
        cmp -s one other || fail "rows from $first in steps of $step differ: $(diff one other)"
    done
    asked=$((${asked:-0} + 13))
}

same before
say "asked before the files: $(arrived 7412 remote) rows came from the exporter, $(arrived 7412 file) from the file; answers are equal"
[ "$(arrived 7412 remote)" -gt 1000 ] || fail "rows did not come from the exporter: $(status 7412)"
[ "$(arrived 7412 file)" = 0 ] || fail "rows came from the file though the exporter was asked first: $(status 7412)"

same after
say "asked after the files: $(arrived 7413 remote) rows came from the exporter, $(arrived 7413 file) from the file; answers are equal"
[ "$(arrived 7413 file)" -gt 1000 ] || fail "rows did not come from the file"

# The exporter dies while rows are read from it.
load() {
    while [ ! -e stop ]; do
        ids=$(seq -s, $((RANDOM % 500)) 13 19999)
        timeout -k 3 "$ROWMILL_TEST_PATIENCE" "$rowmill" lookup "shm:$PWD/before.sock" --table items --ids "$ids" --deadline-ms "$patience_ms" > lookup.log 2>&1 ||
            { cp lookup.log refused.log; echo refused >> refusals; }
        echo done >> lookups
    done
}
touch refusals lookups
config only.toml only 7414 model
start only 7414; only=$started
load &
loading=$!
moved() { [ "$(wc -l < lookups)" -ge "$1" ]; }
wait_until "$ROWMILL_TEST_PATIENCE" moved 3 || fail "no load"
kill -9 $exporter
wait_until "$ROWMILL_TEST_PATIENCE" is_apart 7412 || fail "the reader does not notice: $(status 7412)"
wait_until "$ROWMILL_TEST_PATIENCE" moved $(($(wc -l < lookups) + 5)) || fail "requests hang"
touch stop
wait $loading
[ ! -s refusals ] || fail "$(wc -l < refusals) requests failed: $(cat refused.log)"
say "killed under load: $(wc -l < lookups) requests, none refused; $(arrived 7412 file) rows came from the file"
[ "$(arrived 7412 file)" -gt 0 ] || fail "none came from the file"
ids=$(seq -s, 5 17 19999)
[ "$(ask only --table items --ids "$ids")" = "$(ask before --table items --ids "$ids")" ] || fail "answers differ without the exporter"

# It is back; the files are gone from under the readers, so that rows come from there or not at all.
start exporter 7411; exporter=$started
for port in 7412 7413; do
    wait_until "$ROWMILL_TEST_PATIENCE" is_connected $port || fail "not connected again: $(status $port)"
done
say "back: connected again, $(remote 7412 connected) times"
for file in copy/*; do
    case $file in *manifest*|*checksum*|*crc*) ;; *) truncate -s 4096 "$file" ;; esac
done
rows=$(arrived 7413 remote)
same before
same after
say "files cut off: $(($(arrived 7413 remote) - rows)) rows that they don't have any more came from the exporter; answers are equal"
[ "$(arrived 7413 remote)" -gt "$rows" ] || fail "rows did not come from the exporter"

# Another generation comes to both, and its file goes from under the reader.
generation() {
    "$rowmill" generation $1 --admin "127.0.0.1:$2" > generation.log 2>&1 || fail "generation $1 at $2: $(cat generation.log)"
}
holds_two() {
    [ "$(remote 7412 state | grep -c '^connected$')" = 2 ]
}
generation "load 2" 7411
generation "load 2" 7412
wait_until "$ROWMILL_TEST_PATIENCE" holds_two || fail "not connected for both: $(status 7412)"
generation "activate 2" 7411
generation "activate 2" 7412
for file in second/*; do
    case $file in *manifest*|*checksum*|*crc*) ;; *) truncate -s 4096 "$file" ;; esac
done
rows=$(arrived 7412 remote)
same before
[ "$(arrived 7412 remote)" -gt "$rows" ] || fail "rows of generation 2 did not come from the exporter: $(status 7412)"
say "generation 2: $(($(arrived 7412 remote) - rows)) rows came from the exporter; answers are equal"
generation "unload 1" 7412
is_connected 7412 || fail "not connected for the one that is left: $(status 7412)"
same before

# A reader that ends gives its lease back.
readers() {
    [ "$(status 7411 | grep -o '"lease_left_ms"' | wc -l)" = "$1" ]
}
wait_until "$ROWMILL_TEST_PATIENCE" readers 2 || fail "not two readers: $(status 7411)"
kill -TERM $before
wait $before || fail "the reader ended with $?"
wait_until "$ROWMILL_TEST_PATIENCE" readers 1 || fail "a reader that ended is held"
kill -TERM $after $only $exporter
wait $after && wait $only && wait $exporter || fail "one ended with $?"
say "drained and ended"
