#!/bin/bash
# SPDX-License-Identifier: MIT
#
# perftest between the two hosts, over the wire, by IPv4 and IPv6.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

port=18500

server_listens() { on b sh -c "netstat -ltn | grep -q ':$port '"; }

# pair WHAT GID PROGRAM OPTION…: runs a server and a client, which both succeed; keeps the client's output.
pair() {
  local what=$1 gid=$2 server failed_before=$failures
  shift 2
  port=$((port + 1))
  timeout -k 5 120 ip netns exec b "$@" -d rxe1 -x "$(gid_index rxe1 "${gid}2")" -F -p $port \
    >"$work/server" 2>&1 &
  server=$!
  processes+=("$server")
  await server_listens || failed "the server listens: $(tail -n 5 "$work/server"), $(ps | grep "[i]b_")"
  expect 0 "$what" on a "$@" -d rxe0 -x "$(gid_index rxe0 "${gid}1")" -F -p $port $v4_b
  ((failures == failed_before)) || kill "$server" 2>/dev/null
  if wait "$server"; then
    passed "the server's side of it"
  else
    failed "the server's side of it: $(tail -n 5 "$work/server")"
  fi
}

figures() { sed -n 's/^ *\([0-9][0-9]* .*\)/        \1/p' "$work/out"; }

section "ib_write_bw, 64 KiB"
for gid in $gid_v4 $gid_v6; do
  before=$(on_wire)
  pair "GID ${gid}1" $gid ib_write_bw -s 65536 -n 100
  holds "its bytes went over the wire" moved 6553600
  says "^ *65536 *100 "
  figures
done

section "ib_read_bw, 64 KiB"
before=$(on_wire)
pair "read" $gid_v4 ib_read_bw -s 65536 -n 50
holds "its bytes went over the wire" moved 3276800
figures

section "ib_write_lat, 8 bytes"
pair "latency" $gid_v4 ib_write_lat -s 8 -n 200
figures

section "a wire that loses one packet in a hundred"
impair loss 1%
pair "ib_write_bw" $gid_v4 ib_write_bw -s 65536 -n 20
restore

finish
