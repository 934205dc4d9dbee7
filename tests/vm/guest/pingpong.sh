#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul pingpong between the two hosts over Soft-RoCE, every byte checked on both sides.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

size=1048576

# play ADDRESS SERVER'S-PLACE CLIENT'S-PLACE
play() {
  local address=$1 there=$2 here=$3 player
  : >"$work/server"
  on b "$HAUL" pingpong --server --insecure --listen "tcp://$address:20000" --place "$there" \
    --only rdma >"$work/server" 2>"$work/server.err" &
  player=$!
  processes+=("$player")
  await grep -q "^listening on " "$work/server"
  before=$(on_wire)
  expect 0 "the client is content" on a "$HAUL" pingpong "$address" --place "$here" --size $size \
    --only rdma
  says "^pingpong: verified$"
  says "^client: 1.00 MiB at $here,"
  says "^one-sided read  *rdma  .*DMA [123]  *right  *right$"
  wait "$player"
  holds "the server is content" test $? = 0
  cp "$work/server" "$work/out"
  cp "$work/server.err" "$work/err"
  says "^pingpong: verified$"
  says "^server: 1.00 MiB at $there,"
  says "^one-sided write  *rdma  .*DMA [123]  *right  *right$"
}

for address in $v4_b "[$v6_b]"; do
  section "host and host, over $address"
  play "$address" host host
  holds "both bodies went over Soft-RoCE's wire" moved $((2 * size))
done

for there in host sim:0; do
  for here in host sim:0; do
    [[ $there$here != hosthost ]] || continue
    section "server at $there, client at $here"
    play $v4_b $there $here
  done
done

section "a path that is closed"
on b "$HAUL" pingpong --server --insecure --listen tcp://$v4_b:20000 --place host >"$work/server" 2>&1 &
player=$!
processes+=("$player")
await grep -q "^listening on " "$work/server"
expect 1 "the client fails" on a "$HAUL" pingpong $v4_b --place host --only map --size 4096
complains "the peer is on another host\|no Unix socket\|not reach"
wait "$player"
holds "the server fails, too" test $? = 1

finish
