#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul trace.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

length=3000000
random_file "$work/file" $length
serve --name watched --region target=host:4M

# watch ADDRESS…: starts a recording to $work/timeline; sets $watcher.
watch() {
  rm -f "$work/said" "$work/timeline"
  "$HAUL" trace "$@" -o "$work/timeline" --seconds 60 2>"$work/said" &
  watcher=$!
  processes+=("$watcher")
  await grep -q "^watching " "$work/said"
}

# ends STATUS WHAT: the watcher ends with this status.
ends() {
  wait "$watcher"
  holds "$2" test $? = "$1"
  cp "$work/said" "$work/err"
  cp "$work/timeline" "$work/out"
}

well_formed() {
  python3 "$here/trace_format.py" "$work/timeline"
}

# The events of a phase.
phase="lambda p: [e for e in it['traceEvents'] if e['ph'] == p]"

section "a write to the node"
watch "$tcp"
expect 0 "a put" "$HAUL" put "$work/file" "$tcp/target" --only tcp
expect 0 "a get" "$HAUL" get "$tcp/target" "$work/got" --only tcp --length 5000
holds "nothing is there before the end" test ! -e "$work/timeline"
kill -INT "$watcher"
ends 0 "SIGINT ends it with status 0"
holds "its form is right" well_formed
stderr_has "^[1-9][0-9]* events, 0 lost$"
is_json
holds_json "the file has as many" "sum(e['ph'] in 'Xib' for e in it['traceEvents']) == \
  $(sed -n 's/^\([0-9]*\) events, .*/\1/p' "$work/err")"
holds_json "the process is the node" \
  "[e['args']['name'] for e in ($phase)('M') if e['name'] == 'process_name'] == ['haul watched']"
holds_json "every track has a name" \
  "{e['tid'] for e in it['traceEvents']} == {e['tid'] for e in ($phase)('M')}"
holds_json "one is for the peer, over tcp" \
  "any(e['args']['name'].startswith('for ') and ' tcp' in e['args']['name'] for e in ($phase)('M'))"
holds_json "writes have their bytes" \
  "sum(e['args']['bytes'] for e in ($phase)('X') if e['name'] == 'write') == $length"
holds_json "and reads" \
  "sum(e['args']['bytes'] for e in ($phase)('i') if e['name'] == 'read') == 5000"
holds_json "none failed, and all ended" \
  "not any('error' in e['args'] or 'unfinished' in e['args'] for e in ($phase)('X'))"
holds_json "spans of a track do not overlap" \
  "all(a['tid'] != b['tid'] or a['ts'] + a['dur'] <= b['ts'] + 0.0015 for s in
   [sorted(($phase)('X'), key=lambda e: (e['tid'], e['ts']))] for a, b in zip(s, s[1:]))"

section "a write over map"
watch "$tcp"
expect 0 "a put" "$HAUL" put "$work/file" "$tcp/target" --only map
kill -INT "$watcher"
ends 0 "a recording without events"
stderr_has "^0 events, 0 lost$"
stderr_has "^haul: trace: peers moved 2.86 MiB over map meanwhile, which only traces of their own nodes show$"

section "transfers of the node"
mkdir "$work/folder"
cp "$work/file" "$work/folder/file"
if ! "$HAUL" serve --listen tcp://127.0.0.1:0 --export "$work/nowhere" 2>&1 | grep -q "cannot export $work"; then
  skipped "an exported file: this haul was built without the module for files"
else
  HAUL_PATHS=tcp serve --export data="$work/folder"
  watch "$tcp"
  expect 0 "an exported file is read" "$HAUL" get "$tcp/data/file" "$work/got"
  kill -INT "$watcher"
  ends 0 "it ends"
  is_json
  holds_json "the transfers show its bytes" \
    "sum(e['args']['bytes'] for e in ($phase)('X') if e['args']['path'] == 'tcp') >= $length"
  holds_json "so do their slices" \
    "sum(e['args']['bytes'] for e in ($phase)('b')) >= $length"
  holds_json "each begin has its end" \
    "sorted(e['id2']['local'] for e in ($phase)('b')) == sorted(e['id2']['local'] for e in ($phase)('e'))"
fi

# two_sides PREFIX…: a node that the prefix runs moves bytes of the watched node, and both are recorded.
# The trace is left in $work/out.
two_sides() {
  start_listener "$@" "${HAUL_MOVER:?}" mover "$tcp" target "$work/orders"
  watch "$listening" "$tcp"
  for one in "write 5000000" "read 3000000" "write 4000" "read 1"; do
    echo "$one" >&9
  done
  await has_lines 4 "^done$" "$work/serve"
  kill -INT "$watcher"
  ends 0 "a recording of two nodes"
  slay "$server"
}

section "both sides of a transfer"
serve --name watched --region target=host:8M
mkfifo "$work/orders"
exec 9<>"$work/orders"
two_sides env
holds "its form is right" well_formed
stderr_has "^the clock of watched is .* that of mover, +-.*s$"
holds_json "there are two processes" "len({e['pid'] for e in it['traceEvents']}) == 2"
holds_json "the second one shows the bound of the error" \
  "[e['args']['name'].startswith('haul watched (times +-') for e in ($phase)('M')
    if e['name'] == 'process_name'] == [False, True]"
holds_json "each slice has an arrow" "len(($phase)('s')) == len(($phase)('b')) == it['otherData']['arrows'] == 10"
holds_json "writes lead to the second node, reads to the first one" \
  "{(e['name'], e['pid']) for e in ($phase)('f')} == {('write', 2), ('read', 1)}"
holds_json "on one host both clocks are one: the estimate is right, within its bound" \
  "0 < it['otherData']['clock_error_ns'] and
   abs(it['otherData']['clock_offset_ns']) <= it['otherData']['clock_error_ns']"
if unshare --time --monotonic 1000 true 2>/dev/null; then
  two_sides unshare --time --monotonic 1000
  holds "its form is right" well_formed
  holds_json "another clock, 1000 s ahead, is known within the bound of the error" \
    "abs(it['otherData']['clock_offset_ns'] + 1000 * 10**9) <= it['otherData']['clock_error_ns']"
  holds_json "each slice has its arrow" "it['otherData']['arrows'] == 10"
else
  skipped "another clock: no time namespaces here"
fi
exec 9>&-
expect 2 "a node beside itself" "$HAUL" trace "$tcp" "$tcp" -o "$work/none"
complains "both nodes are $tcp: "
watch "$tcp" "$unix"
kill -INT "$watcher"
ends 0 "a node beside itself, by another address"
holds "its form is right" well_formed

section "to standard output"
expect 0 "half a second" "$HAUL" trace "$tcp" -o - --seconds 0.5
stderr_has "^0 events, 0 lost$"
is_json

section "permissions"
"$HAUL" key new "$work/key" 2>/dev/null
export HAUL_KEY=$work/key
serve --region target=host:4M
expect 1 "with a key, over tcp" "$HAUL" trace "$tcp" -o "$work/none" --seconds 0.1
complains_briefly
complains "^hint: connect over its Unix socket"
holds "no file is left" test ! -e "$work/none"
expect 0 "over its Unix socket" "$HAUL" trace "$unix" -o "$work/none" --seconds 0.1
unset HAUL_KEY

section "a node that ends"
serve --region target=host:4M
watch "$tcp"
stop "$server"
ends 1 "is a failure"
complains "cannot read the trace of the node"
is_json

section "two nodes, of which one ends"
serve --region target=host:4M
kept=$tcp
serve --region target=host:4M
watch "$kept" "$tcp"
stop "$server"
ends 1 "is a failure"
complains "cannot read the trace of the node"
holds "which is reported once" has_lines 1 "^haul: " "$work/err"
holds "the form of the file is right" well_formed

section "a hostile node beside another one"
serve_hostile spans
limit=60 expect 0 "is recorded" "$HAUL" trace "$kept" "$tcp" -o "$work/timeline" --seconds 5
holds "its form is right" well_formed
holds "with all unfinished events" has_lines 200000 '"unfinished": true' "$work/timeline"
slay "$server"

section "a hostile node with endless open events"
serve_hostile spans
limit=30 expect 0 "is recorded" "$HAUL" trace "$tcp" -o "$work/timeline" --seconds 5
stderr_has "^200000 events, 0 lost$"
holds "with all unfinished events" has_lines 200000 '"unfinished": true' "$work/timeline"
slay "$server"

section "wrong usage"
expect 2 "no file" "$HAUL" trace "$tcp"
complains "missing option -o FILE"
expect 2 "no node" "$HAUL" trace -o "$work/none"
expect 2 "three nodes" "$HAUL" trace "$tcp" "$tcp" "$tcp" -o "$work/none"
expect 1 "a file without a name" "$HAUL" trace "$tcp" -o ""
complains "the name of the output file is empty"
holds "is rejected before the recording" eval '! grep -q "^watching" "$work/err"'
expect 1 "a missing folder" "$HAUL" trace "$tcp" --output "$work/no/file"

finish
