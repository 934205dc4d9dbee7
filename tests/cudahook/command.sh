#!/bin/bash
# SPDX-License-Identifier: MIT
#
# An unmodified application with the hook: the log has the outcome of each call, the command lists and
# reads its memory by name, and invalid settings do not disturb the application.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/../cli/lib.sh"

: "${HAUL_CUDAHOOK_PRELOAD:?set it to the libraries to preload}" "${KEEP:?set it to the application}"
: "${HAUL_DOUBLES:?set it to tests/doubles of the build folder}"
export LD_LIBRARY_PATH=$HAUL_DOUBLES/cuda/current
bytes=3000000

# run SETTINGS…: runs the application to its end.
run() {
  expect 0 "the application runs" env "$@" LD_PRELOAD="$HAUL_CUDAHOOK_PRELOAD" "$KEEP" $bytes \
    <"$work/bytes"
  says "^ready$"
}

# start SETTINGS…: starts the application, until it is ready. Sets $keep; `end_it` ends it.
start() {
  rm -f "$work/input"
  mkfifo "$work/input"
  env "$@" LD_PRELOAD="$HAUL_CUDAHOOK_PRELOAD" "$KEEP" $bytes <"$work/input" >"$work/keep" 2>&1 &
  keep=$!
  processes+=("$keep")
  exec 9>"$work/input"
  head -c $bytes "$work/bytes" >&9
  await grep -q ready "$work/keep" || cat "$work/keep"
}

end_it() {
  exec 9>&-
  wait "$keep"
  status=$?
  holds "the application ends well" test "$status" = 0
}

random_file "$work/bytes" $bytes

section "the log"
run HAUL_CUDAHOOK_LOG="$work/log"
holds "two lines" has_lines 2 "" "$work/log"
holds "the allocation" grep -qE \
  '^haul-cudahook [0-9]+ cudaMalloc 3000000 0x[0-9a-f]+ cuda:0 served$' "$work/log"
holds "the free" grep -qE \
  '^haul-cudahook [0-9]+ cudaFree 3000000 0x[0-9a-f]+ cuda:0 freed$' "$work/log"
run HAUL_CUDAHOOK_LOG="$work/log" HAUL_CUDAHOOK_MINIMUM=4000000
holds "lines are appended" has_lines 4 "" "$work/log"
holds "the reason for passing it on" grep -q \
  'cudaMalloc 3000000 .* passed on: smaller than HAUL_CUDAHOOK_MINIMUM, 4000000 bytes$' "$work/log"
holds "and for its free" grep -q 'cudaFree 0 .* passed on: not allocated by haul$' "$work/log"
run HAUL_CUDAHOOK_LOG="$work/settings" HAUL_CUDAHOOK_MINIMUM=4M HAUL_CUDAHOOK_RIGHTS=all
holds "an invalid size is reported" \
  grep -q 'settings .* invalid HAUL_CUDAHOOK_MINIMUM=4M: expected a number of bytes, 1048576 is used (hint: ' "$work/settings"
holds "invalid rights too" \
  grep -q 'settings .* invalid HAUL_CUDAHOOK_RIGHTS=all: expected r or rw, r is used (hint: ' "$work/settings"
run HAUL_CUDAHOOK_LOG=1
stderr_has "^haul-cudahook [0-9]* cudaMalloc 3000000 .* served$"
run HAUL_CUDAHOOK_LOG=0
holds "none" test ! -s "$work/err"
run HAUL_CUDAHOOK_LOG="$work/no/such/folder"
run HAUL_CUDAHOOK_LOG=/dev/full
expect 0 "a program without CUDA" env HAUL_CUDAHOOK_LOG="$work/other" \
  LD_PRELOAD="$HAUL_CUDAHOOK_PRELOAD" true
holds "has no log" test ! -e "$work/other"

section "by name"
start HAUL_CUDAHOOK_LOG="$work/named" HAUL_CUDAHOOK_LISTEN="unix://$work/%p.sock" \
  HAUL_CUDAHOOK_PUBLISH=kv
holds "it logs the address" grep -q "listening on unix://$work/$keep.sock$" "$work/named"
holds "it logs the name" grep -q "cudaMalloc 3000000 .* published as kv.0$" "$work/named"
expect 0 "ls" "$HAUL" ls "unix://$work/$keep.sock"
says "^kv.0  *2.86 MiB  *cuda:0  *read$"
expect 0 "get" "$HAUL" get "unix://$work/$keep.sock/kv.0" "$work/copy" --checksum
holds "the bytes are the application's" cmp "$work/bytes" "$work/copy"
expect 1 "put is refused" "$HAUL" put "$work/bytes" "unix://$work/$keep.sock/kv.0"
end_it

start HAUL_CUDAHOOK_LISTEN="unix://$work/rw.sock" HAUL_CUDAHOOK_PUBLISH=kv HAUL_CUDAHOOK_RIGHTS=rw
expect 0 "ls" "$HAUL" ls "unix://$work/rw.sock"
says "^kv.0  *2.86 MiB  *cuda:0  *read-write"
expect 0 "get over map" "$HAUL" get "unix://$work/rw.sock/kv.0" "$work/copy" --only map
holds "the bytes are the application's" cmp "$work/bytes" "$work/copy"
expect 0 "put" "$HAUL" put "$work/copy" "unix://$work/rw.sock/kv.0"
end_it

section "invalid settings"
# warns PATTERN: stderr has one line of the hook, with the text and a hint.
warns() {
  stderr_has "^haul-cudahook [0-9]*: $1.* (hint: .*)$"
  holds "and no more" has_lines 1 "" "$work/err"
}

# logs PATTERN: the log has the text, and nothing is published.
logs() {
  holds "the log says '$1'" grep -q -e "$1" "$work/log"
  holds "and not 'published'" has_lines 0 "cuda:0 published as " "$work/log"
}

# mistaken SETTINGS…: runs it twice, with a log and without.
mistaken() {
  rm -f "$work/log"
  run HAUL_CUDAHOOK_LOG="$work/log" "$@"
  cp "$work/err" "$work/logged"
  run "$@"
  holds "stderr is the same with a log" \
    cmp <(sed 's/[0-9]*:/:/' "$work/logged") <(sed 's/[0-9]*:/:/' "$work/err")
}

mistaken HAUL_CUDAHOOK_LISTEN=carrier-pigeon://coop HAUL_CUDAHOOK_PUBLISH=kv
warns "cannot listen on carrier-pigeon://coop: "
logs "haul_node_listen .* cannot listen on carrier-pigeon://coop: "
logs "cudaMalloc 3000000 .* served$"
logs "cudaMalloc 3000000 .* not reachable as kv.0: cannot listen on carrier-pigeon://coop: "
mistaken HAUL_CUDAHOOK_LISTEN=tcp://0.0.0.0:0 HAUL_CUDAHOOK_PUBLISH=kv
warns "cannot listen on tcp://0.0.0.0:0: without a key"
stderr_has "HAUL_CUDAHOOK_INSECURE=1"
holds "the hint does not name the command" has_lines 0 "haul serve" "$work/err"
mistaken HAUL_CUDAHOOK_LISTEN="unix://$work/%p.sock" HAUL_CUDAHOOK_INSECURE=yes
warns "invalid HAUL_CUDAHOOK_INSECURE=yes: expected 0 or 1"
mistaken HAUL_CUDAHOOK_PUBLISH=kv
warns "HAUL_CUDAHOOK_PUBLISH=kv: peers cannot connect, as HAUL_CUDAHOOK_LISTEN is not set"
logs "cudaMalloc 3000000 .* not reachable as kv.0: HAUL_CUDAHOOK_LISTEN is not set$"
for prefix in "no blanks" "$(printf 'x%.0s' {1..600})"; do
  mistaken HAUL_CUDAHOOK_LISTEN="unix://$work/%p.sock" HAUL_CUDAHOOK_PUBLISH="$prefix"
  warns "cannot publish ${prefix:0:500}.*: invalid name"
  logs "cudaMalloc 3000000 .* cannot publish ${prefix:0:500}"
done
mistaken HAUL_CUDAHOOK_MINIMUM=much
warns "invalid HAUL_CUDAHOOK_MINIMUM=much: expected a number of bytes, 1048576 is used"
mistaken HAUL_CUDAHOOK_MINIMUM=-1
warns "invalid HAUL_CUDAHOOK_MINIMUM=-1: expected"
expect 0 "a program of small allocations" env HAUL_CUDAHOOK_MINIMUM=4K \
  LD_PRELOAD="$HAUL_CUDAHOOK_PRELOAD" "$KEEP" 5000 </dev/null
warns "invalid HAUL_CUDAHOOK_MINIMUM=4K: expected"
mistaken HAUL_CUDAHOOK_RIGHTS=all
warns "invalid HAUL_CUDAHOOK_RIGHTS=all: expected r or rw"
run HAUL_CUDAHOOK_LOG=1 HAUL_CUDAHOOK_LISTEN=carrier-pigeon://coop
holds "a log on stderr does not repeat it" has_lines 1 "carrier-pigeon://coop" "$work/err"
run HAUL_CUDAHOOK_LOG= HAUL_CUDAHOOK_LISTEN= HAUL_CUDAHOOK_PUBLISH= HAUL_CUDAHOOK_RIGHTS= \
  HAUL_CUDAHOOK_MINIMUM= HAUL_CUDAHOOK_INSECURE=
holds "empty variables count as unset" test ! -s "$work/err"

section "an address in use"
start HAUL_CUDAHOOK_LISTEN="unix://$work/one.sock" HAUL_CUDAHOOK_PUBLISH=kv
holds "the first has no warnings" has_lines 1 "" "$work/keep"
mistaken HAUL_CUDAHOOK_LISTEN="unix://$work/one.sock" HAUL_CUDAHOOK_PUBLISH=kv
warns "cannot listen on unix://$work/one.sock: another process listens here already"
stderr_has "(hint: use %p in HAUL_CUDAHOOK_LISTEN"
logs "not reachable as kv.0: cannot listen on unix://$work/one.sock: "
expect 0 "peers still find the first" "$HAUL" ls "unix://$work/one.sock"
end_it

section "no GPU"
expect 1 "the application reports the error" env CUDA_VISIBLE_DEVICES= HAUL_CUDAHOOK_LOG=1 \
  LD_PRELOAD="$HAUL_CUDAHOOK_PRELOAD" "$KEEP" $bytes
says "^cudaMalloc: error 100$"
complains "cudaMalloc 3000000 .* passed on: the runtime has no device: error 100; error 100$"
export LD_LIBRARY_PATH=
expect 1 "no driver" env HAUL_CUDAHOOK_LOG=1 LD_PRELOAD="$HAUL_CUDAHOOK_PRELOAD" "$KEEP" $bytes
says "^cudaMalloc: error 35$"

finish
