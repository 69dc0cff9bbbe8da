# rowmilld over RDMA: it is not served without saying that it is insecure; its answers are those that it gives over
# shared memory, of a table that is cached too; what it holds for clients is back when they have gone; SIGTERM drains it; results come to a GPU's memory by
# whatever way the device has, with a stand-in for CUDA's driver.
# lab-topology: loopback
# lab-limit: 60 300
# lab-programs: bins
. "$ROWMILL_LAB/lib.sh"

rowmill=$ROWMILL_PROGRAMS/bins/rowmill
rowmilld=$ROWMILL_PROGRAMS/bins/rowmilld
endpoint=rdma://$ROWMILL_RDMA_ADDRESS:7400
socket=shm:$PWD/serve.sock

"$rowmill" table generate model --table items:20000:128:f32 --table places:500:64:int8 > generate.log

# config FILE ENDPOINT PORT INSECURE
config() {
    cat > "$1" <<EOF
endpoints = ["$2"]
insecure = $4
[model]
directory = "$PWD/model"
huge_pages = "off"
[workers]
cpus = 2
pin = false
[limits]
connections = 8
[idle]
spin_us = 0
[admin]
address = "127.0.0.1:$3"
EOF
}

config secure.toml "$endpoint" 7401 false
! "$rowmilld" --config secure.toml > secure.log 2>&1 || fail "it is served without saying insecure"
grep -q 'insecure = true' secure.log || fail "the refusal does not say what to do: $(cat secure.log)"
say "refused as it should be: $(tail -1 secure.log)"

config rdma.toml "$endpoint" 7401 true
config shm.toml "$socket" 7402 false
# Over RDMA a fifth of the rows is cached, and the rest in a file of this machine's memory, which has no way past the page cache.
cat >> rdma.toml <<EOF
[[tables]]
name = "items"
placement = "cached"
cache_bytes = 2097152
[cache]
page_cache = "allow"
budget_ms = $((ROWMILL_TEST_PATIENCE * 1000))
EOF
"$rowmilld" --config rdma.toml > "$ROWMILL_LAB_SHARE/rdma.log" 2>&1 &
over_rdma=$!
"$rowmilld" --config shm.toml > "$ROWMILL_LAB_SHARE/shm.log" 2>&1 &
over_shm=$!
serves() {
    "$rowmill" status --admin "127.0.0.1:$1" --json | grep -q '"state": *"serving"'
}
for port in 7401 7402; do
    wait_until "$ROWMILL_TEST_PATIENCE" serves $port ||
        { cat "$ROWMILL_LAB_SHARE"/*.log; fail "nobody serves at port $port"; }
done

held() {
    "$rowmill" status --admin 127.0.0.1:7401 --json | tr -d ' \n' | grep -o '"held":{[^}]*}'
}
before=$(held)
say "held before clients came: $before"

# ask ENDPOINT ARGUMENTS...: the answer without its times.
ask() {
    timeout -k 3 "$ROWMILL_TEST_PATIENCE" "$rowmill" lookup "$@" --deadline-ms $((ROWMILL_TEST_PATIENCE * 1000)) --full 2>&1 | sed 's/, served in .*//'
}

# same ARGUMENTS...: the answers over both ports are equal, or the same refusal.
same() {
    local one two
    one=$(ask "$endpoint" "$@") && one="ok $one"
    two=$(ask "$socket" "$@") && two="ok $two"
    [ -n "$one" ] && [ "${one//$endpoint/}" = "${two//$socket/}" ] ||
        fail "lookup $* differs: over RDMA
$one
and over shared memory
$two"
    answers=$((${answers:-0} + 1))
}
many=$(seq -s, 0 3 19999)
few=$(seq -s, 5 7 2000)
same --table items --ids 0
same --table items --ids 7,7,19999,3 --pool mean
same --table places --ids 499,1 --weights 0.5,-2 --output f16
same --table items --ids "$many"
same --table items --ids "${many:0:20000}" --pool none
same --table items --ids "$few"
same --table items --ids "$few"
same --table items --ids 20000
same --table nowhere --ids 1
say "$answers answers and refusals are equal over both ports"

# cached NAME: one of the figures of the cached table.
cached() {
    "$rowmill" status --admin 127.0.0.1:7401 --json | tr -d ' \n' | grep -o '{[^{}]*"table":"items"[^{}]*}' |
        grep -o "\"$1\":[0-9]*" | cut -d: -f2
}
hits=$(cached hits) misses=$(cached misses) evicted=$(cached evicted)
say "rows of the cached table over RDMA: $hits hits, $misses misses, $evicted evicted"
[ "$hits" -gt 0 ] && [ "$misses" -gt 0 ] && [ "$evicted" -gt 0 ] || fail "it was not cached: $("$rowmill" status --admin 127.0.0.1:7401)"

is_as_before() {
    [ "$(held)" = "$before" ]
}
wait_until "$ROWMILL_TEST_PATIENCE" is_as_before ||
    fail "held after clients have gone: $(held), before: $before"
say "held after they have gone: the same"

kill -TERM $over_rdma $over_shm
wait $over_rdma || fail "rowmilld over RDMA ended with $?"
wait $over_shm || fail "rowmilld over shared memory ended with $?"
say "drained and ended"

ROWMILL_FAULTS_RDMA=$ROWMILL_RDMA_ADDRESS "$ROWMILL_PROGRAMS/bins/faults" --filter '^gpu-' |
    tee "$ROWMILL_LAB_SHARE/faults.log" | say_faults || fail "faults of GPU memory over RDMA"
grep -q '^3 passed, 0 failed' "$ROWMILL_LAB_SHARE/faults.log" || fail "not all faults of GPU memory were tried"
