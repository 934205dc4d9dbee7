#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul cache: wrong usage. No store is needed, and no file is made.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/other" 1000
node=unix://$work/absent

# cache WHAT ARGUMENTS…: is wrong usage.
cache() {
  expect 2 "$1" "$HAUL" cache "${@:2}"
  complains "^usage: haul cache"
}

section "operands"
cache "no action"
complains "missing action: expected serve, put, get, exists, ls, rm, pin, unpin, stat, check or repair"
cache "an unknown action" steal "$node"
complains "invalid action 'steal': expected serve, put"
cache "serve without a file" serve
complains "missing operand FILE of serve"
for action in put get exists ls rm pin unpin stat check repair; do
  [[ $action == pin ]] && lease=(--lease 9) || lease=()
  cache "$action without nodes" "$action"
  complains "missing operand NODES of $action"
  operands=()
  case $action in
  put | get) operands=(key "$work/other") ;;
  exists | rm | pin | unpin) operands=(key) ;;
  *) ;;
  esac
  cache "$action of no nodes" "$action" "" "${operands[@]}" "${lease[@]}"
  complains "NODES is empty"
done
for action in put get exists rm unpin; do
  cache "$action without a key" "$action" "$node"
  complains "too few operands for $action"
done
cache "put without a file" put "$node" key
for action in ls stat check repair; do
  cache "$action with a key" "$action" "$node" key
  complains "too many operands for $action: 'key'"
done
cache "serve with two files" serve "$work/none" more
complains "too many operands for serve: 'more'"
cache "an empty node" ls "$node,,$node"
cache "257 nodes" ls "$(seq -s , -f "host%g" 257)"
complains "expected up to 256 nodes, separated by commas"
expect 1 "256 nodes" "$HAUL" cache ls "$(seq -s , -f "unix:///none/%g" 256)"
stderr_has "/none/256"
cache "get of JSON and bytes" get "$node" key - --json

section "values"
cache "an unknown path" ls "$node" --only ib
complains "invalid --only 'ib': expected map, rdma or tcp"
cache "an invalid priority" put "$node" key "$work/other" --priority urgent
for lease in 0 -1 86401 soon; do
  cache "a lease of $lease" pin "$node" key --lease "$lease"
  complains "invalid --lease '$lease': expected seconds greater than 0, at most 86400"
done
cache "a pin without a lease" pin "$node" key
complains "pin needs --lease SECONDS; unpin ends pins"
cache "a place that is none" serve "$work/none" --device nowhere --device-capacity 4M
complains "haul info"
cache "a device without a capacity" serve "$work/none" --device sim:0
cache "a capacity without a file tier" serve "$work/none" --capacity 4M --file-capacity 4M
cache "a capacity without a device" serve "$work/none" --device-capacity 4M
for directory in etcd://typo etcd://typo/ typo etcd://typo/a/b ""; do
  cache "registration in '$directory'" serve "$work/none" --capacity 4M --register "$directory"
  complains "invalid --register '$directory': expected etcd://HOST"
done
cache "an address that is none" serve "$work/none" --capacity 4M --listen 7500

section "options of other actions"
# The options of each action; all others are wrong.
serve="capacity blocks file-tier file-capacity device device-capacity listen name register insecure ready-fd log log-format"
declare -A owns=(
  [serve]=$serve
  [put]="replicas if-absent priority lease only timeout json"
  [get]="replicas only timeout json"
  [exists]="replicas only timeout json"
  [ls]="only timeout json"
  [rm]="replicas only timeout"
  [pin]="replicas lease only timeout"
  [unpin]="replicas only timeout"
  [stat]="only timeout json"
  [check]="replicas only timeout json"
  [repair]="replicas only timeout json"
)
value_of() {
  case $1 in
  insecure | if-absent | json) ;;
  capacity | file-capacity | device-capacity | blocks | replicas | ready-fd | lease | timeout) echo 1 ;;
  only) echo tcp ;;
  *) echo text ;;
  esac
}
all=$("$HAUL" help cache | sed -n 's/^  --\([a-z-]*\).*/\1/p' | grep -vx help)
holds "the help has the options" test "$(wc -w <<<"$all")" = "$(echo "${owns[@]}" | tr ' ' '\n' | sort -u | wc -l)"
for action in "${!owns[@]}"; do
  for option in $all; do
    [[ " ${owns[$action]} " == *" $option "* ]] && continue
    # shellcheck disable=SC2046 # no word for a flag
    cache "$action --$option" "$action" "$node" --"$option" $(value_of "$option")
    complains "$action has no option --$option"
  done
done
# With too few operands or a file in no folder, the options are read and the call fails.
for action in "${!owns[@]}"; do
  for option in ${owns[$action]}; do
    # shellcheck disable=SC2046
    "$HAUL" cache "$action" "$work/none/none" --"$option" $(value_of "$option") >"$work/out" 2>"$work/err"
    holds "$action has --$option" eval '! grep -q "has no option" "$work/err"'
  done
done
holds "no file is made" test ! -e "$work/none"

finish
