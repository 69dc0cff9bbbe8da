# The C interface over RDMA: lookup.c and memory.c against rowmilld. Memory of the caller's is written by the NIC there, and copied to
# over shared memory; nothing is held of clients that have gone.
# lab-topology: loopback
# lab-limit: 60 300
# lab-programs: bins c
. "$ROWMILL_LAB/lib.sh"

over_rdma=rdma://$ROWMILL_RDMA_ADDRESS:7400
over_shm=shm:$PWD/capi.sock
rowmill=$ROWMILL_PROGRAMS/bins/rowmill

"$rowmill" table generate model --table items:20000:64:f32 --table countries:250:64:int8 > generate.log
# service NAME ENDPOINT PORT INSECURE: starts one in the background; its number is $service.
service() {
    cat > "$1.toml" <<END
endpoints = ["$2"]
insecure = $4
[model]
directory = "$PWD/model"
huge_pages = "off"
[workers]
cpus = 2
pin = false
[idle]
spin_us = 0
[admin]
address = "127.0.0.1:$3"
END
    "$ROWMILL_PROGRAMS/bins/rowmilld" --config "$1.toml" > "$ROWMILL_LAB_SHARE/$1.log" 2>&1 &
    service=$!
}
service rdma "$over_rdma" 7401 true
serves_rdma=$service
service shm "$over_shm" 7402 false
serves_shm=$service
for name in rdma shm; do
    wait_until "$ROWMILL_TEST_PATIENCE" grep -q ready: "$ROWMILL_LAB_SHARE/$name.log" ||
        { cat "$ROWMILL_LAB_SHARE/$name.log"; fail "nobody serves over $name"; }
done

held() {
    "$rowmill" status --admin 127.0.0.1:7401 --json | tr -d ' \n' | grep -o '"held":{[^}]*}'
}
before=$(held)

# example TEXT NAME URL: runs an example, which has to print that and to end well.
example() {
    timeout -k 3 "$ROWMILL_TEST_PATIENCE" "$ROWMILL_PROGRAMS/c/$2" "$3" > printed 2>&1 || fail "$2 $3 ended with $?: $(cat printed)"
    grep -qF -- "$1" printed || fail "$2 $3 does not say \`$1\`: $(cat printed)"
    say "$2 $3: $1"
}
for url in "$over_rdma" "$over_shm"; do
    example 'the sum of three rows is what was pooled' lookup "$url"
    example 'the vectors are those of memory' memory "$url"
done
example 'answers come there without a copy' memory "$over_rdma"
example 'answers are copied there' memory "$over_shm"

is_as_before() {
    [ "$(held)" = "$before" ]
}
wait_until "$ROWMILL_TEST_PATIENCE" is_as_before || fail "held after clients have gone: $(held), before: $before"
say "held after they have gone: the same"
kill -TERM $serves_rdma $serves_shm
wait $serves_rdma || fail "rowmilld over RDMA ended with $?"
wait $serves_shm || fail "rowmilld over shared memory ended with $?"
say "drained and ended"
