#!/usr/bin/env bash
# Tests the C interface as its users meet it: the header is what cbindgen makes, the library exports what the version script
# says, and the examples are built by pkg-config against an installed tree and run against a real service: plainly, under
# valgrind and with sanitizers. Programs and the archive are taken from where cargo puts them (`make test-c` builds them).
# Not under helgrind: it knows the locks of pthreads only, and the library's are futexes; `make test-full` runs threads that share
# a connection under ThreadSanitizer.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=${CARGO_TARGET_DIR:-$PWD/target}/release
tools=${ROWMILL_CACHE:-$HOME/.cache/rowmill}/tools
cbindgen_version=0.29.4
folder=$(mktemp -d)
service=
stop() {
    [ -z "$service" ] || kill -KILL "$service" 2>/dev/null || true
}
trap 'rm -rf "$folder"' EXIT

# What it needs beside what building needs.
missing=()
command -v c++ >/dev/null || missing+=(g++)
command -v readelf >/dev/null || missing+=(binutils)
command -v valgrind >/dev/null || missing+=(valgrind libc6-dbg)
if [ ${#missing[@]} -gt 0 ]; then
    sudo=""
    [ "$(id -u)" -eq 0 ] || sudo=sudo
    echo "installing ${missing[*]}"
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi
# A tool only: its licence (MPL-2.0) is not one of those of dependencies.
if ! "$tools/bin/cbindgen" --version 2>/dev/null | grep -qF "$cbindgen_version"; then
    echo "installing cbindgen $cbindgen_version in $tools"
    cargo install --quiet --locked --root "$tools" "cbindgen@$cbindgen_version"
fi

# The stand-in for CUDA's driver: a GPU is not needed.
export ROWMILL_CUDA_LIBRARY=$programs/libcuda_stand_in.so

names=() times=() outcomes=()
failed=0
# check NAME COMMAND...: runs it; what it prints is shown where it fails.
check() {
    local name=$1 began=$EPOCHREALTIME outcome=ok status=0
    shift
    # Not in a condition: there bash ignores -e, and only the last command of a function would count.
    set +e
    (
        set -e
        "$@"
    ) >"$folder/output" 2>&1
    status=$?
    set -e
    if [ "$status" -ne 0 ]; then
        outcome=FAILED
        failed=1
        printf -- '---- %s\n' "$name"
        cat "$folder/output"
    fi
    names+=("$name")
    times+=("$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')")
    outcomes+=("$outcome")
}

header_is_what_cbindgen_makes() {
    "$tools/bin/cbindgen" --quiet --config ffi/capi/cbindgen.toml ffi/capi -o "$folder/rowmill.h"
    diff ffi/capi/include/rowmill.h "$folder/rowmill.h" || {
        echo "make it anew: $tools/bin/cbindgen --config ffi/capi/cbindgen.toml ffi/capi -o ffi/capi/include/rowmill.h"
        return 1
    }
}

# The header alone, with all that compilers warn of.
header_compiles() {
    local strict=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$prefix/include" -include rowmill.h) standard
    for standard in c99 c11 c17; do
        cc -std=$standard "${strict[@]}" -x c /dev/null
    done
    for standard in c++11 c++17 c++20; do
        c++ -std=$standard "${strict[@]}" -x c++ /dev/null
    done
}

# Exactly the functions of the version script and of the header, all of them with its version; and the soname.
symbols_have_versions() {
    readelf --wide --dyn-syms "$prefix/lib/librowmill.so" |
        awk '$7 != "UND" && $8 ~ /@@/ && $4 != "OBJECT" { print $8 }' | sort >"$folder/exported"
    readelf --wide --dyn-syms "$prefix/lib/librowmill.so" |
        awk 'NR > 3 && $7 != "UND" && $7 != "ABS" && $8 != "" && $8 !~ /@@ROWMILL_/ { print "without a version: " $8; bad = 1 } END { exit bad }'
    sed -n '/^ROWMILL_/s/ {$//p; s/^    \(rowmill_.*\);$/\1/p' ffi/capi/rowmill.map |
        awk '/^ROWMILL_/ { node = $1; next } { print $1 "@@" node }' | sort >"$folder/wanted"
    diff "$folder/wanted" "$folder/exported"
    grep -oE '^[a-z].*\*?rowmill_[a-z_]+\(' "$prefix/include/rowmill.h" | grep -oE 'rowmill_[a-z_]+\($' | tr -d '(' | sort >"$folder/declared"
    diff <(sed 's/@@.*//' "$folder/exported") "$folder/declared"
    readelf -d "$prefix/lib/librowmill.so" | grep -F 'SONAME' | grep -F '[librowmill.so.0]'
}

# compile FOLDER OPTIONS...: all examples, by what pkg-config says.
compile() {
    local to=$folder/$1 flags
    shift
    mkdir -p "$to"
    flags=$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --cflags --libs rowmill)
    local strict=(-g -O1 -Wall -Wextra -Wpedantic -Werror -Wl,-rpath,"$prefix/lib")
    for name in lookup rows memory pipelined threads gpu misuse; do
        # shellcheck disable=SC2086
        cc -std=gnu11 "${strict[@]}" "$@" "ffi/capi/examples/$name.c" -o "$to/$name" $flags -lpthread -ldl -lm
    done
    # shellcheck disable=SC2086
    c++ -std=c++17 "${strict[@]}" "$@" ffi/capi/examples/lookup.cpp -o "$to/lookup-cpp" $flags
}

# Starts a service, which ends with this shell: `check` has one for each of its commands.
start() {
    trap stop EXIT
    cat >"$folder/rowmilld.toml" <<END
endpoints = ["shm:$socket"]
model.directory = "$folder/model"
admin.address = "127.0.0.1:0"
END
    : >"$folder/log" # so that no other service's is read below
    "$programs/rowmilld" --config "$folder/rowmilld.toml" 2>"$folder/log" &
    service=$!
    timeout 30 sh -c "until grep -q ready: '$folder/log'; do sleep 0.1; done" || {
        cat "$folder/log"
        return 1
    }
}

# run_all FOLDER WRAPPER...: all examples against a service, which the last one kills.
run_all() {
    local from=$folder/$1 socket=$folder/$1.sock
    local url=shm:$socket
    shift
    start
    for example in "lookup $url" "rows $url" "memory $url" "lookup-cpp $url" "pipelined $url 500" "threads $url 200" "gpu $url" "misuse $url $service"; do
        echo "-- $example"
        # shellcheck disable=SC2086
        timeout 110 "$@" "$from"/$example
    done
}

# The library has no debug information here: valgrind 3.19 stumbles over what LLVM writes.
memcheck=(valgrind --quiet --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect,possible
    --errors-for-leak-kinds=definite,indirect --fair-sched=yes)

prefix=$folder/installed
"$programs/rowmill" table generate "$folder/model" --table items:100000:64:f32 --table countries:250:64:int8 >"$folder/generated"
check "header is cbindgen's" header_is_what_cbindgen_makes
check "link and install" ffi/capi/install.sh "$prefix" "$programs"
check "header compiles" header_compiles
check "symbols have versions" symbols_have_versions
check "examples compile" compile plain
check "examples compile, sanitized" compile sanitized -fsanitize=address,undefined -fno-sanitize-recover=all
check "examples" run_all plain
grep -E '^(ok|FAIL) ' "$folder/output" || true
check "examples under valgrind" run_all plain "${memcheck[@]}"
check "examples, sanitized" run_all sanitized
printf '\n%-30s %8s  %s\n' "C interface" seconds outcome
for i in "${!names[@]}"; do
    printf '%-30s %8s  %s\n' "${names[$i]}" "${times[$i]}" "${outcomes[$i]}"
done
exit $failed
