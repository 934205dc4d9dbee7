#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul pingpong: sessions for every pair of places, and malformed peers.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

# start_server ADDRESS OPTIONS…: sets $player, its process, and $listening, its address.
start_server() {
  start_listener "$HAUL" pingpong --server --listen "$@"
  player=$server
}

for address in tcp://127.0.0.1:0 "unix://$work/pp.sock"; do
  for here_place in host sim:0; do
    for there_place in host sim:0; do
      section "${address%%:*}: server at $there_place, client at $here_place"
      start_server "$address" --place "$there_place"
      expect 0 "the client succeeds" "$HAUL" pingpong "$listening" --place "$here_place"
      says "^pingpong: verified$"
      if [[ $here_place$there_place == hosthost ]]; then
        says "^exchange 3  *messages  *-  *right  *right$"
      else
        says "^exchange 3  *\(map\|tcp\)  .*DMA [12]  *right  *right$"
      fi
      says "^one-sided write  *(theirs)  *-  *right  *right$"
      says "^one-sided read  *\(map\|tcp\)  .*[12]  *right  *right$"
      says "^  found 200 201 202"
      says "^client: 4.00 MiB at $here_place"
      wait "$player"
      holds "the server succeeds" test $? = 0
      cp "$work/serve" "$work/out"
      says "^pingpong: verified$"
      says "^  found 100 101 102"
      says "^server: 4.00 MiB at $there_place"
    done
  done
done

section "other sizes, as JSON"
start_server tcp://127.0.0.1:0 --place host
expect 0 "one element, one iteration" "$HAUL" pingpong "$listening" --size 4 --iterations 1 --json \
  --place sim:0
holds_json "the summary says so" 'it["verified"] and it["bytes"] == 4 and len(it["steps"]) == 3 and
  all(s["here"] and s["there"] for s in it["steps"])'
wait "$player"
holds "the server succeeds" test $? = 0

section "one path alone"
start_server tcp://127.0.0.1:0 --only tcp
expect 0 "the client succeeds" "$HAUL" pingpong "$listening" --only tcp --size 64K
says "^exchange 1  *tcp  *kernel 2, DMA 2  *right  *right$"
says "^one-sided read  *tcp  *kernel 2, DMA 2  *right  *right$"
wait "$player"
holds "the server succeeds" test $? = 0
cp "$work/serve" "$work/out"
says "^exchange 3  *tcp  *kernel 2, DMA 2  *right  *right$"
says "^one-sided write  *tcp  *kernel 2, DMA 2  *right  *right$"
start_server tcp://127.0.0.1:0
expect 1 "a closed path" env HAUL_RDMA_NICS=none0 "$HAUL" pingpong "$listening" --only rdma --size 64K
complains "no path meets the constraints"
wait "$player"
holds "the server fails, too" test $? = 1

section "memory of GPUs, by the NIC alone"
if [[ -e ${HAUL_DOUBLES:-}/ibverbs/moving ]]; then
  doubles=(env "HAUL_DOUBLE_FABRIC=$work/fabric" HAUL_DOUBLE_FAULT=dmabuf HAUL_CUDA_DOUBLE=dmabuf=2
    "LD_LIBRARY_PATH=$HAUL_DOUBLES/cuda/current:$HAUL_DOUBLES/ibverbs/moving")
  start_listener "${doubles[@]}" "$HAUL" pingpong --server --listen tcp://127.0.0.1:0 \
    --place cuda:0 --only rdma
  expect 0 "the client succeeds" "${doubles[@]}" "$HAUL" pingpong "$listening" --place cuda:1 \
    --only rdma
  says "^exchange 3  *rdma  *DMA 1  *right  *right$"
  says "^client: 4.00 MiB at cuda:1,"
  wait "$server"
  holds "the server succeeds" test $? = 0
  cp "$work/serve" "$work/out"
  says "^exchange 3  *rdma  *DMA 1  *right  *right$"
  says "^server: 4.00 MiB at cuda:0,"
else
  skipped "GPUs at NICs: HAUL_DOUBLES has no emulated NIC, as this build is without rdma"
fi

section "an unknown place"
start_server tcp://127.0.0.1:0 --place sim:77
expect 0 "the client succeeds" "$HAUL" pingpong "$listening" --place sim:77
stderr_has "so host memory is used"
says "^client: 4.00 MiB at host (instead of the requested place)"
wait "$player"
holds "the server succeeds" test $? = 0

section "failures"
expect 1 "no listener" "$HAUL" pingpong tcp://127.0.0.1:1 --timeout 2
complains_briefly
serve --region a=host:1M
expect 1 "another program on the other side" "$HAUL" pingpong "$tcp" --timeout 1
complains "timed out waiting for the other side"
serve --echo
expect 1 "wrong messages of the other side" "$HAUL" pingpong "$tcp" --timeout 5
complains "it is not .haul pingpong --server.$"
start_server tcp://127.0.0.1:0
timeout 20 "$HAUL" bench "$listening" --op message --sizes 8 --duration 0.1 >/dev/null 2>&1
await eval "! kill -0 $player"
wait "$player"
holds "a server fails on messages of another program" test $? = 1
start_server tcp://127.0.0.1:0
"$HAUL" pingpong "$listening" --size 64M --iterations 1000 >"$work/out" 2>"$work/err" &
client=$!
processes+=("$client")
await grep -q "^exchange 1$" "$work/out"
slay "$player"
wait "$client"
holds "a client fails when its server is killed" test $? = 1
start_server tcp://127.0.0.1:0
kill -TERM "$player"
wait "$player"
holds "a waiting server ends on SIGTERM" test $? = 143

finish
