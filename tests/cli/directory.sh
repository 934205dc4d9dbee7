#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Nodes by name: haul serve --register, haul ls of a directory, and directory names as addresses.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

command -v etcd >/dev/null || skip_all "etcd is missing: tools/deps installs it"

random_file "$work/file" 500000

# etcd_on PORT: starts an etcd for this test.
etcd_on() {
  etcd --data-dir "$work/etcd" --unsafe-no-fsync \
    --listen-client-urls "http://127.0.0.1:$1" --advertise-client-urls "http://127.0.0.1:$1" \
    --listen-peer-urls "http://127.0.0.1:$(($1 + 1))" \
    --initial-advertise-peer-urls "http://127.0.0.1:$(($1 + 1))" \
    --initial-cluster "default=http://127.0.0.1:$(($1 + 1))" >"$work/etcd.log" 2>&1 &
  etcd=$!
  processes+=("$etcd")
  directory=etcd://127.0.0.1:$1/cluster
  await "$HAUL" ls "$directory" --timeout 1 >/dev/null 2>&1
}

# A pair of unused ports.
for port in $(shuf -i 20000-30000 -n 20); do
  (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
done
if ! etcd_on "$port"; then
  failed "etcd, or haul ls of it"
  "$HAUL" ls "$directory"
  finish
fi

# serve_as NAME OPTION…: registers a node of that name; sets $server.
serve_as() {
  : >"$work/$1"
  "$HAUL" serve --name "$1" --listen tcp://127.0.0.1:0 --register "$directory" --lease 2 --log info "${@:2}" \
    >"$work/$1" 2>"$work/$1.err" &
  server=$!
  processes+=("$server")
  await grep -q "^listening on " "$work/$1" || failed "haul serve $*"
}

section "an empty directory"
expect 0 "it lists" "$HAUL" ls "$directory"
says "^NODE  *ADDRESSES$"
expect 0 "in JSON" "$HAUL" ls "$directory" --json
is_json
holds_json "nothing" 'it == {"nodes": [], "regions": []}'

section "nodes and regions"
mkdir "$work/tree" && echo "exported" >"$work/tree/text"
serve_as one --region kv=host:1M --export tree="$work/tree"
first=$server
serve_as two --region scratch=host:2M:ro
expect 0 "it lists" "$HAUL" ls "$directory"
says "^one  *tcp://127.0.0.1:[0-9]*$"
says "^kv  *one  *1.00 MiB  *host  *read-write$"
says "^scratch  *two  *2.00 MiB  *host  *read$"
expect 0 "in JSON" "$HAUL" ls "$directory" --json
holds_json "both nodes" '[n["node"] for n in it["nodes"]] == ["one", "two"]'
holds_json "both regions" '[(r["name"], r["node"], r["bytes"]) for r in it["regions"]] == [("kv", "one", 1 << 20), ("scratch", "two", 2 << 20)]'
expect 0 "a node's own list" "$HAUL" ls "$directory/two"
says "^scratch "
expect 0 "put to a region by its name" "$HAUL" put "$work/file" "$directory/kv"
expect 0 "get by node and name" "$HAUL" get "$directory/one/kv" "$work/back" --length 500000
holds "the bytes are the same" cmp "$work/file" "$work/back"
expect 0 "an exported file of a node" "$HAUL" get "$directory/one/tree/text" "$work/text"
holds "has its content" grep -q exported "$work/text"
expect 0 "a node's exports" "$HAUL" ls "$directory/one/"
says "^tree "
expect 0 "explain" "$HAUL" explain host "$directory/kv"
expect 1 "an unknown name" "$HAUL" ls "$directory/three"
complains_briefly
complains "^hint: list the entries: haul ls $directory$"
expect 1 "an unreachable directory" timeout 60 "$HAUL" serve --name one --listen tcp://127.0.0.1:0 \
  --register "etcd://127.0.0.1:1/cluster"
complains "check that etcd listens there"
expect 2 "--lease alone" "$HAUL" serve --lease 3

section "changes"
"$HAUL" ls "$directory" --follow >"$work/follow" 2>&1 &
follower=$!
processes+=("$follower")
await grep -q "^NAME" "$work/follow"
serve_as three --region late=host:1M
await grep -q "^came region late three$" "$work/follow" && passed "a new region is printed"
stop "$server"
await grep -q "^went node three$" "$work/follow" && passed "a stopped node is printed"
slay "$first"
await grep -q "^went node one$" "$work/follow" && passed "a killed node is printed after its lease"
kill -INT "$follower"
wait "$follower"
holds "it ends with status 0" test $? = 0
expect 1 "the killed node is not found" "$HAUL" ls "$directory/one"

section "etcd restarts"
slay "$etcd"
await grep -q " warning unregistered code=" "$work/two.err" && passed "the server logs the loss"
rm -rf "$work/etcd"
etcd_on "$port" || failed "etcd again"
await grep -q " info registered$" "$work/two.err" && passed "the server logs the return"
expect 0 "the node is registered again" "$HAUL" ls "$directory"
says "^scratch  *two "
expect 0 "a plain address works without it" "$HAUL" ls "$(sed -n 's/^listening on //p' "$work/two")"

finish
