# Answers in a GPU's memory over RDMA, from C, with the stand-in for CUDA's driver for a GPU: of each way to the memory the report says what
# became of it, and answers that come by it are those that come to the host's memory.
# lab-topology: loopback
# lab-limit: 60 300
# lab-programs: bins c
. "$ROWMILL_LAB/lib.sh"

endpoint=rdma://$ROWMILL_RDMA_ADDRESS:7400
export ROWMILL_CUDA_LIBRARY=$ROWMILL_PROGRAMS/c/libcuda_stand_in.so
through='a small transfer has come through'
reported=$ROWMILL_LAB_SHARE/reported

"$ROWMILL_PROGRAMS/bins/rowmill" table generate model --table items:1000:64:f32 > generate.log
cat > rowmilld.toml <<EOF
endpoints = ["$endpoint"]
insecure = true
[model]
directory = "$PWD/model"
huge_pages = "off"
[workers]
cpus = 2
pin = false
[idle]
spin_us = 0
[admin]
address = "127.0.0.1:7401"
EOF
"$ROWMILL_PROGRAMS/bins/rowmilld" --config rowmilld.toml > "$ROWMILL_LAB_SHARE/rowmilld.log" 2>&1 &
service=$!
wait_until "$ROWMILL_TEST_PATIENCE" grep -q ready: "$ROWMILL_LAB_SHARE/rowmilld.log" ||
    { cat "$ROWMILL_LAB_SHARE/rowmilld.log"; fail "nobody serves"; }

# example STATUS COMMAND...: runs it; it has to end so.
example() {
    local wanted=$1 status=0
    shift
    timeout -k 3 "$ROWMILL_TEST_PATIENCE" "$@" > "$reported" 2>&1 || status=$?
    cat "$reported"
    [ "$status" -eq "$wanted" ] || fail "${*: -2} ended with $status"
}

# told TEXT...: each stands in what it printed.
told() {
    for text in "$@"; do
        grep -qF -- "$text" "$reported" || fail "it does not say: $text"
    done
    say "$1"
}

gpu=$ROWMILL_PROGRAMS/c/gpu
no_module='nvidia-peermem: the kernel module is not loaded'
example 0 "$gpu" "$endpoint"
told "staging: $through" "$no_module" 'the GPU has the answer that the host has'
if [ "$ROWMILL_LAB_GROUND" != nic ]; then
    told 'dma-buf: registering dma-bufs (GPU memory) is not supported here'
fi
example 1 "$gpu" "$endpoint" no-staging
told "no NIC can write to the GPU's memory, and staging was ruled out" "$no_module"
ROWMILL_STAND_IN='corrupt=cuMemcpyHtoDAsync_v2' example 1 "$gpu" "$endpoint"
told "no way leads to the GPU's memory" "$no_module" 'staging: a small transfer did not come through'

if [ "$(id -u)" -ne 0 ]; then
    say "nvidia-peermem was not tried: it takes root to have its file there"
else
    # Runs a command where the file is there that the module makes.
    with_module=(unshare --mount sh -c 'mount -t tmpfs none /sys/kernel/mm && mkdir -p /sys/kernel/mm/memory_peers/nv_mem &&
        echo stand-in > /sys/kernel/mm/memory_peers/nv_mem/version && exec "$@"' sh)
    example 0 "${with_module[@]}" "$gpu" "$endpoint" no-staging
    told "nvidia-peermem: $through" 'the GPU has the answer that the host has'
    ROWMILL_STAND_IN='ordering=0 no-flush' example 0 "${with_module[@]}" "$gpu" "$endpoint"
    told "staging: $through" 'dma-buf, nvidia-peermem: the GPU neither orders what a NIC writes'
fi

kill -TERM $service
wait $service || fail "rowmilld ended with $?"
