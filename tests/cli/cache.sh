#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul cache: stores, blocks, restarts, and stores by their names in etcd.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/block" 3000001
random_file "$work/other" 70000

# serve_cache NAME OPTION…: starts a store in $work/NAME; sets $server and $address.
serve_cache() {
  rm -f "$work/$1.out" # of the store before
  "$HAUL" cache serve "$work/$1" --listen "unix://$work/$1.sock" "${@:2}" >"$work/$1.out" 2>"$work/$1.err" &
  server=$!
  processes+=("$server")
  address=unix://$work/$1.sock
  await grep -q "^listening on " "$work/$1.out" || {
    cat "$work/$1.out" "$work/$1.err"
    failed "haul cache serve $*"
  }
}

section "a store"
expect 1 "a new one without a capacity" "$HAUL" cache serve "$work/none"
complains_briefly
complains "capacity"
holds "no file is left" test ! -e "$work/none"
serve_cache one --capacity 16M
one=$server
expect 0 "put" "$HAUL" cache put "$address" first "$work/block"
says "^put first (2.86 MiB) at $address, 1 of 1 replicas$"
expect 0 "get" "$HAUL" cache get "$address" first "$work/copy"
says "^get first (2.86 MiB) from $address (memory), $work/copy$"
holds "the bytes are the same" cmp "$work/block" "$work/copy"
expect 0 "put from a pipe" sh -c "cat '$work/other' | '$HAUL' cache put $address second - --json"
is_json
holds_json "the report names key, size and node" \
  "it == {'key': 'second', 'bytes': 70000, 'node': '$address', 'replicas': 1, 'wanted': 1}"
"$HAUL" cache get "$address" second - 2>"$work/err" | cmp -s - "$work/other"
holds "get to a pipe writes only the bytes" test "${PIPESTATUS[1]}" = 0
mkfifo "$work/fifo"
expect 1 "put from a FIFO without a writer" timeout -k 1 20 "$HAUL" cache put "$address" fifo "$work/fifo" --timeout 1
complains "timed out waiting"
expect 1 "put if absent of a key that exists" "$HAUL" cache put "$address" first "$work/other" --if-absent
complains_briefly
expect 0 "get" "$HAUL" cache get "$address" first "$work/copy"
holds "the block is as before" cmp "$work/block" "$work/copy"
expect 0 "replace it" "$HAUL" cache put "$address" first "$work/other" --priority high --lease 3600
expect 0 "get" "$HAUL" cache get "$address" first "$work/copy" --json
holds_json "the report has its new size" 'it["bytes"] == 70000'
holds "the block is the new one" cmp "$work/other" "$work/copy"

section "lists"
expect 0 "ls" "$HAUL" cache ls "$address"
says "^KEY  *SIZE  *PRIORITY  *TIER  *NODE$"
says "^first  *68.36 KiB  *high  *memory  *$address$"
expect 0 "in JSON" "$HAUL" cache ls "$address" --json
holds_json "it has both keys" 'sorted(b["key"] for b in it["blocks"]) == ["first", "second"]'
expect 0 "stat" "$HAUL" cache stat "$address" --json
holds_json "it counts" \
  'it["stores"][0]["blocks"] == 2 and it["stores"][0]["pinned"] == 73728 and it["stores"][0]["puts"] == 3'
expect 0 "stat as a table" "$HAUL" cache stat "$address"
says "^NODE  *CAPACITY  *USED"
expect 2 "pin without a lease" "$HAUL" cache pin "$address" first
complains "pin needs --lease SECONDS; unpin ends pins"
expect 0 "stat" "$HAUL" cache stat "$address" --json
holds_json "the pin stays" 'it["stores"][0]["pinned"] == 73728'
expect 0 "end the pin" "$HAUL" cache unpin "$address" first
expect 0 "stat" "$HAUL" cache stat "$address" --json
holds_json "nothing is pinned" 'it["stores"][0]["pinned"] == 0'
expect 0 "pin" "$HAUL" cache pin "$address" first second --lease 3600
expect 0 "stat" "$HAUL" cache stat "$address" --json
holds_json "both are pinned" 'it["stores"][0]["pinned"] == 2 * 73728'
expect 0 "end the pins" "$HAUL" cache unpin "$address" first second

section "exists"
expect 0 "exists" "$HAUL" cache exists "$address" second first
says "^first  *68.36 KiB  *memory  *$address$"
expect 1 "exists with an absent key" "$HAUL" cache exists "$address" first nothing
complains_briefly
complains "cannot find 1 of 2 keys: no store has the key (nothing)"
says "^nothing  *absent"
expect 1 "in JSON" "$HAUL" cache exists "$address" first nothing --json
holds_json "it says which" "it == {'keys': [{'key': 'first', 'exists': True, 'bytes': 70000, 'tier': 'memory',
  'node': '$address'}, {'key': 'nothing', 'exists': False}]}"
expect 1 "exists without a store" "$HAUL" cache exists "unix://$work/absent" first --json
complains_briefly
complains "cannot find 1 of 1 keys: the store at unix://$work/absent cannot be reached"
holds_json "nobody knows" "it == {'keys': [{'key': 'first', 'exists': None}]}"

section "keys"
odd=$'odd\xff\x01' control=$'control\x01\xe2\x80\xae'
expect 0 "a key that is no UTF-8" "$HAUL" cache put "$address" "$odd" "$work/other" --json
holds_json "the report has its bytes" 'it["key"] == "odd\ufffd\x01" and it["key_hex"] == "6f6464ff01"'
expect 0 "a key with control characters" "$HAUL" cache put "$address" "$control" "$work/other" --json
holds_json "JSON has them" 'it["key"] == "control\x01\u202e" and "key_hex" not in it'
expect 0 "ls" "$HAUL" cache ls "$address" --json
holds_json "it has the same keys" 'sorted((b["key"], b.get("key_hex")) for b in it["blocks"]) == [
  ("control\x01\u202e", None), ("first", None), ("odd\ufffd\x01", "6f6464ff01"), ("second", None)]'
expect 0 "ls as a table" "$HAUL" cache ls "$address"
says "^control????  "
says "^odd??  "
expect 1 "check" "$HAUL" cache check "$address" --replicas 2 --json
holds_json "it has them, too" 'sorted(b.get("key_hex", b["key"]) for b in it["short"]) == [
  "6f6464ff01", "control\x01\u202e", "first", "second"]'
expect 0 "rm" "$HAUL" cache rm "$address" "$odd" "$control"

section "failures"
expect 1 "get of an absent key" "$HAUL" cache get "$address" nothing "$work/nothing"
complains_briefly
complains "nothing"
holds "no file is left" test ! -e "$work/nothing"
expect 1 "put of an absent file" "$HAUL" cache put "$address" key "$work/absent"
complains_briefly
expect 1 "put of an empty file" "$HAUL" cache put "$address" key /dev/null
complains_briefly
random_file "$work/large" 17000000
expect 1 "put of a block beyond the capacity" "$HAUL" cache put "$address" key "$work/large"
complains_briefly
complains "it has more than 16.00 MiB, the capacity of the largest store"
small=(python3 -c 'import resource, subprocess, sys
status = subprocess.call(sys.argv[1:])
sys.exit(status if resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 512 << 10 else "over 512 MiB of memory")')
truncate -s 20G "$work/huge"
expect 1 "put of a file that is far beyond it" "${small[@]}" "$HAUL" cache put "$address" key "$work/huge"
complains_briefly
complains "it has more than 16.00 MiB"
expect 1 "put of a file that does not end" "${small[@]}" "$HAUL" cache put "$address" key /dev/zero
complains_briefly
complains "cannot put /dev/zero: it has more than 16.00 MiB"
expect 1 "put of a long file without a store" "$HAUL" cache put "unix://$work/absent" key "$work/huge"
complains_briefly
complains "$work/absent"
rm "$work/huge"
expect 1 "a store whose file another one has" "$HAUL" cache serve "$work/one" --listen "unix://$work/two.sock"
complains_briefly
complains "another process"
expect 1 "the same node twice" "$HAUL" cache ls "$address,$address"
complains_briefly

section "removal"
expect 0 "rm" "$HAUL" cache rm "$address" second
expect 1 "again" "$HAUL" cache rm "$address" second
complains_briefly

section "restarts"
kill -KILL "$one"
wait "$one" 2>/dev/null
expect 1 "get from a store that is gone" "$HAUL" cache get "$address" first "$work/copy"
complains_briefly
complains "$address"
serve_cache one
holds "it tells what it has" grep -q "^1 blocks restored, 0 damaged ones dropped" "$work/one.out"
expect 0 "get" "$HAUL" cache get "$address" first "$work/copy"
holds "the bytes are the same" cmp "$work/other" "$work/copy"
kill "$server"
wait "$server"
holds "SIGTERM ends it with status 0" test $? = 0

section "a file tier"
serve_cache tiers --capacity 4M --file-tier "$work/tiers.file" --file-capacity 16M
"$HAUL" cache put "$address" first "$work/block" >/dev/null
"$HAUL" cache put "$address" second "$work/block" >/dev/null
expect 0 "get of a block that left the memory" "$HAUL" cache get "$address" first "$work/copy" --json
holds_json "it was in the file" 'it["tier"] == "file"'
holds "the bytes are the same" cmp "$work/block" "$work/copy"
expect 0 "get of one in memory" "$HAUL" cache get "$address" second "$work/copy" --json
holds_json "it was in memory" 'it["tier"] == "memory"'
expect 0 "stat" "$HAUL" cache stat "$address" --json
holds_json "it counts both" \
  'it["stores"][0]["evictions"] == 1 and it["stores"][0]["file"]["blocks"] == 1 and it["stores"][0]["file"]["puts"] == 1'
expect 0 "stat as a table" "$HAUL" cache stat "$address"
says "^  file tier  *16.00 MiB"
kill "$server"
wait "$server"
expect 1 "a file tier without a capacity" "$HAUL" cache serve "$work/tiers" --file-tier "$work/none"
complains "capacity"
holds "no file is left" test ! -e "$work/none"

section "a device tier" # in memory of the emulated accelerator
serve_cache device --capacity 16M --device sim:0 --device-capacity 4M
holds "it tells its capacity" grep -q "capacity 20.00 MiB$" "$work/device.out"
"$HAUL" cache put "$address" first "$work/block" >/dev/null
"$HAUL" cache put "$address" second "$work/block" >/dev/null
expect 0 "get of a block in the device" "$HAUL" cache get "$address" second "$work/copy" --json
holds_json "it was in the device" 'it["tier"] == "device"'
holds "the bytes are the same" cmp "$work/block" "$work/copy"
expect 0 "get of one that left it" "$HAUL" cache get "$address" first "$work/copy" --json
holds_json "it was in memory" 'it["tier"] == "memory"'
holds "the bytes are the same" cmp "$work/block" "$work/copy"
expect 0 "ls" "$HAUL" cache ls "$address" --json
holds_json "it names the tiers" \
  'sorted((b["key"], b["tier"]) for b in it["blocks"]) == [("first", "memory"), ("second", "device")]'
expect 0 "stat" "$HAUL" cache stat "$address" --json
holds_json "it counts both" \
  'it["stores"][0]["device"]["puts"] == 2 and it["stores"][0]["device"]["evictions"] == 1 and it["stores"][0]["puts"] == 1'
expect 0 "stat as a table" "$HAUL" cache stat "$address"
says "^  device tier  *4.00 MiB"
kill "$server"
wait "$server"
holds "SIGTERM ends it with status 0" test $? = 0
serve_cache device
holds "the device's blocks are in memory" grep -q "^2 blocks restored, 0 damaged" "$work/device.out"
expect 0 "get" "$HAUL" cache get "$address" second "$work/copy" --json
holds_json "it was in memory" 'it["tier"] == "memory"'
holds "the bytes are the same" cmp "$work/block" "$work/copy"
kill "$server"
wait "$server"
expect 1 "a device that does not exist" "$HAUL" cache serve "$work/none" --capacity 16M --device sim:999 \
  --device-capacity 4M
complains_briefly
complains "sim has"
holds "no file is left" test ! -e "$work/none"
expect 1 "the host as a device" "$HAUL" cache serve "$work/device" --device host --device-capacity 4M
complains "name a device"

section "several stores"
serve_cache a --capacity 16M
a=$address
serve_cache b --capacity 16M
expect 0 "put with two replicas" "$HAUL" cache put "$a,$address" both "$work/block" --replicas 2
says "2 of 2 replicas"
holds "without a warning" test ! -s "$work/err"
expect 0 "put with fewer stores than replicas" "$HAUL" cache put "$a,unix://$work/absent" few "$work/other" --replicas 2
stderr_has "warning: few has 1 of 2 replicas"
expect 0 "in JSON" "$HAUL" cache put "$a" few "$work/other" --replicas 3 --json
holds_json "it says how many were wanted" 'it["replicas"] == 1 and it["wanted"] == 3'
stderr_has "warning: few has 1 of 3 replicas"
expect 0 "rm" "$HAUL" cache rm "$a" few
for node in "$a" "$address"; do
  expect 0 "get from $node" "$HAUL" cache get "$node" both "$work/copy"
  holds "the bytes are the same" cmp "$work/block" "$work/copy"
done

section "repair"
"$HAUL" cache put "$a" alone "$work/other" >/dev/null
expect 1 "check of a block with one replica" "$HAUL" cache check "$a,$address" --replicas 2
says "^alone  *68.36 KiB  *1  *0$"
says "^2 blocks, 0 copied (0 B), 1 replicas missing, 0 nodes away$"
complains "haul cache repair"
expect 0 "repair" "$HAUL" cache repair "$a,$address" --replicas 2 --json
is_json
holds_json "it copied the block" \
  'it["copied"] == 1 and it["missing"] == 0 and it["short"] == [{"key": "alone", "bytes": 70000, "replicas": 1, "copied": 1}]'
expect 0 "check" "$HAUL" cache check "$a,$address" --replicas 2
expect 0 "get from the other node" "$HAUL" cache get "$address" alone "$work/copy"
holds "the bytes are the same" cmp "$work/other" "$work/copy"
expect 1 "repair with a node that is away" "$HAUL" cache repair "$a,$address,unix://$work/absent" --replicas 3
complains "too few nodes"
says "2 replicas missing, 1 nodes away"
stderr_has "1 stores could not be read"
for action in check repair; do
  expect 1 "$action with a node that is away, and nothing missing" "$HAUL" cache "$action" \
    "$a,$address,unix://$work/absent"
  complains_briefly
  complains "1 stores could not be read, and what they have is not counted"
  says "0 replicas missing, 1 nodes away"
done
expect 1 "repair without nodes" "$HAUL" cache repair "unix://$work/absent"
complains_briefly

section "files of a store that does not start"
expect 1 "an address that is taken" "$HAUL" cache serve "$work/none" --capacity 16M --file-tier "$work/none.file" \
  --file-capacity 16M --listen "$address"
complains_briefly
holds "no file is left" test ! -e "$work/none" -a ! -e "$work/none.file"
expect 0 "a put" "$HAUL" cache put "$address" stays "$work/other"
stop "$server"
expect 1 "the same with a file that is there" "$HAUL" cache serve "$work/b" --listen "unix://$work/absent/socket"
complains_briefly
holds "the file stays" test -e "$work/b"
serve_cache b
expect 0 "get" "$HAUL" cache get "$address" stays "$work/copy"
holds "the bytes are the same" cmp "$work/other" "$work/copy"
stop "$server"
expect 1 "another capacity" "$HAUL" cache serve "$work/b" --capacity 9M
complains_briefly
complains "has a capacity of 16777216 bytes"
serve_cache b

section "a store that hangs"
# It leaves half of the time to the other.
freeze "$server"
for action in ls stat; do
  holds "$action has what the other store has" await eval \
    '"$HAUL" cache $action "$address,$a" --timeout 4 | grep "$a"'
done
expect 1 "the status" "$HAUL" cache ls "$address,$a" --timeout 4
complains "$address"
kill -CONT "$server"

section "idle"
ticks() { awk '{ print $14 + $15 }' "/proc/$server/stat"; }
is_idle() {
  local before
  before=$(ticks)
  sleep 2
  (($(ticks) - before <= 1))
}
holds "an idle store uses no processor time" await is_idle

section "names in etcd"
if ! command -v etcd >/dev/null; then
  skipped "stores in a directory: etcd is missing (tools/deps installs it)"
  finish
fi
for port in $(shuf -i 20000-30000 -n 20); do
  (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
done
etcd --data-dir "$work/etcd" --unsafe-no-fsync \
  --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
  --listen-peer-urls "http://127.0.0.1:$((port + 1))" \
  --initial-advertise-peer-urls "http://127.0.0.1:$((port + 1))" \
  --initial-cluster "default=http://127.0.0.1:$((port + 1))" >"$work/etcd.log" 2>&1 &
processes+=("$!")
directory=etcd://127.0.0.1:$port/cluster
if ! "$HAUL" ls "$directory" --timeout 1 >/dev/null 2>&1 && ! await "$HAUL" ls "$directory" --timeout 1; then
  if grep -q "without directories" <("$HAUL" ls "$directory" 2>&1); then
    skipped "stores in a directory: this haul has none"
  else
    failed "etcd, or haul ls of it"
  fi
  finish
fi
expect 1 "a directory without stores" "$HAUL" cache ls "$directory"
complains_briefly
serve_cache c --capacity 16M --name node/c --register "$directory"
serve_cache d --capacity 16M --name d --register "$directory"
expect 0 "put" "$HAUL" cache put "$directory" named "$work/block" --replicas 2
says "2 of 2 replicas"
expect 0 "get" "$HAUL" cache get "$directory" named "$work/copy"
holds "the bytes are the same" cmp "$work/block" "$work/copy"
expect 0 "stat" "$HAUL" cache stat "$directory" --json
holds_json "both are there" \
  "sorted(s['node'] for s in it['stores']) == ['$directory/d', '$directory/node%2Fc']"

finish
