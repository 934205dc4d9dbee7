#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul top.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/file" 3000000
serve --name watched --region target=host:4M

section "once"
expect 0 "a snapshot" "$HAUL" top "$tcp" --once --interval 0.1
says "^watched  up 0:0[0-9]  peers 1  regions 1  transfers 0  failed 0  retried 0$"
says "^PATH  *OUT/s  *IN/s  *SERVED OUT/s  *SERVED IN/s  *SLICES/s  *ERRORS$"
says "^tcp  *0  *0  *0  *0  *0  *0$"
says "^PEER  *WHO  *PATH  *OUT/s"
holds "80 columns are enough" awk 'length($0) > 80 { exit 1 }' "$work/out"
expect 0 "with JSON" "$HAUL" top "$unix" --once --json --interval 0.1
is_json
holds_json "the node" 'it["node"] == "watched" and it["regions"] == 1'
holds_json "this command has its user" \
  '[p["identity"] for p in it["peers"]] == ["uid:%d" % __import__("os").getuid()]'
expect 0 "a write" "$HAUL" put "$work/file" "$tcp/target" --only tcp
expect 0 "is counted" "$HAUL" top "$tcp" --once --json --interval 0.1
holds_json "as served bytes" \
  '[p["served_in"] for p in it["paths"] if p["path"] == "tcp"] == [3000000]'
holds_json "and not in the rate" \
  '[p["served_in_per_second"] for p in it["paths"] if p["path"] == "tcp"] == [0]'
expect 0 "a write over map" "$HAUL" put "$work/file" "$tcp/target" --only map
expect 0 "a read over map" "$HAUL" get "$tcp/target" - --length 1000 --only map
expect 0 "are counted" "$HAUL" top "$tcp" --once --json --interval 0.1
holds_json "as served bytes" \
  '[(p["served_in"], p["served_out"]) for p in it["paths"] if p["path"] == "map"] == [(3000000, 1000)]'

section "repeated"
"$HAUL" top "$tcp" --interval 0.1 >"$work/many" 2>&1 &
watcher=$!
processes+=("$watcher")
await has_lines 3 "^watched  up " "$work/many" && passed "snapshots follow each other"
holds "without escape codes" eval '! grep -q "$(printf "\033")" "$work/many"'
kill -INT "$watcher"
wait "$watcher"
holds "it ends with status 0" test $? = 0
"$HAUL" top "$tcp" --interval 0.1 >"$work/many" 2>"$work/err" &
watcher=$!
processes+=("$watcher")
await has_lines 1 "^watched  up " "$work/many"
stop "$server"
await grep -q "cannot read the statistics of the node" "$work/err" && passed "the end of the node is reported"
wait "$watcher"
holds "as a failure" test $? = 1

section "permissions"
"$HAUL" key new "$work/key" 2>/dev/null
export HAUL_KEY=$work/key
serve --region target=host:4M
expect 1 "with a key, over tcp" "$HAUL" top "$tcp" --once
complains_briefly
complains "^hint: connect over its Unix socket"
expect 0 "over its Unix socket" "$HAUL" top "$unix" --once --interval 0.1
stop "$server"
HAUL_ANY_OBSERVER=yes serve --region target=host:4M
expect 0 "with any_observer" "$HAUL" top "$tcp" --once --interval 0.1
says " haul  *-  *0 "
unset HAUL_KEY

section "a hostile node with endless peers"
serve_hostile peers
limit=120 expect 0 "is read" "$HAUL" top "$tcp" --once --json --interval 0.1 --timeout 60
holds "up to the limit" test "$(grep -c '"name": "one"' "$work/out")" = 65536
slay "$server"

section "the screen"
serve --name watched --region target=host:4M
watched=$tcp
expect 0 "a write" "$HAUL" put "$work/file" "$watched/target" --only tcp
serve_hostile silence
silent=$tcp
serve_hostile escapes
expect 1 "names with sequences for terminals, in a table" "$HAUL" top "$tcp" --once --interval 0.1
holds "are refused" eval '! grep -q "$(printf "\033")" "$work/out" "$work/err"'
limit=280 expect 0 "sizes, keys, ends, stops, colors" python3 "$here/top_screen.py" "$HAUL" "$watched" "$silent" "$tcp"
grep -v "^ok" "$work/out"
expect 0 "a table in another order" "$HAUL" top "$watched" --once --interval 0.1 --sort name
expect 0 "with NO_COLOR" env NO_COLOR=1 "$HAUL" top "$watched" --once --interval 0.1 --color always
holds "a pipe gets no colors" eval '! grep -q "$(printf "\033")" "$work/out"'

section "wrong usage"
expect 2 "another order" "$HAUL" top "$tcp" --sort size
complains "expected busy, out, in, errors, queue or name"
expect 2 "another time for colors" "$HAUL" top "$tcp" --color perhaps
expect 2 "--json alone" "$HAUL" top "$tcp" --json
expect 2 "no node" "$HAUL" top

finish
