# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: MIT
#
# Eight hosts on one switch: each is a network namespace, and so is the switch, which has a bridge.
# What the tests do to them: nodes that start, die and stop, links that are bad, and a switch that
# falls into two. A test sources this file, calls `cluster_up`, and ends with `cluster_end`.
#
# HAUL_SEED gives the seed, which is printed; HAUL_LINKS=relay has links spoiled in user space also
# where the kernel could.

# shellcheck source=tests/cluster/switch.sh
. "$(dirname "${BASH_SOURCE[0]}")/switch.sh"
# shellcheck source=tests/support/freeze.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/freeze.sh"

: "${HAUL_CLUSTER:?HAUL_CLUSTER is to be the folder of cluster_wire and cluster_rank}"

nodes=8
region=24M
everybody=(1 2 3 4 5 6 7 8)
seed=${HAUL_SEED:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$seed # from here on it is the same with the same seed
echo "seed: HAUL_SEED=$seed"

servers=() # by number
clients=() # what `begin` began

# on HOST COMMAND…: not with `&`, which would note a shell's process.
on() { ip netns exec "$(host "$1")" "${@:2}"; }
# within SECONDS HOST COMMAND…: exit status 124 when it has not ended by then.
within() { timeout "$1" ip netns exec "$(host "$2")" "${@:3}"; }
# expect_on HOST STATUS WHAT COMMAND…
expect_on() { expect "$2" "$3" ip netns exec "$(host "$1")" "${@:4}"; }

# cluster_up [HOST…]: the eight, and others beside them.
cluster_up() {
  local one
  # Two bridges: a port that is moved to the other one is cut off without a signal to its host.
  make_switch switch aside
  for one in "${everybody[@]}" "$@"; do
    add_host "$one"
  done
  HAUL_KEY=$work/key
  "$HAUL" key new "$HAUL_KEY" >/dev/null 2>&1 || failed "a key"
  export HAUL_KEY
}

# part HOST…: these reach only each other.
part() {
  local one
  for one; do ip -n "$switch" link set "port$one" master aside; done
}
heal() {
  local one
  for one; do ip -n "$switch" link set "port$one" master switch; done
  forget_neighbours
}
# Else the kernel says for seconds that a host it has asked for in vain cannot be reached.
forget_neighbours() {
  local one
  for one in "${everybody[@]}"; do ip -n "$(host "$one")" neigh flush dev wire nud failed; done
}
# lose FROM TO: what the one sends to the other is lost; the other way nothing is.
lose() {
  ip -n "$(host "$1")" neigh replace "$(address "$2")" lladdr 02:00:00:00:00:fe dev wire nud permanent
}
find_again() { ip -n "$(host "$1")" neigh delete "$(address "$2")" dev wire; }
# The host itself sees that its cable is out.
pull_out() { ip -n "$switch" link set "port$1" down; }
put_in() { ip -n "$switch" link set "port$1" up; }

# by_kernel HOST DISCIPLINE…: both ends of its wire queue like this.
by_kernel() {
  [[ ${HAUL_LINKS-} != relay ]] && command -v tc >/dev/null &&
    on "$1" tc qdisc replace dev wire root "${@:2}" 2>"$work/why" &&
    ip netns exec "$switch" tc qdisc replace dev "port$1" root "${@:2}" 2>"$work/why"
}

# by_relay HOST ORDERS: replaces its wire by cluster_wire, unless that is done, and sends it the orders.
by_relay() {
  local orders=$work/wire$1
  if [[ ! -p $orders ]]; then
    if [[ ! -c /dev/net/tun ]]; then
      echo "there is no /dev/net/tun for a relay" >>"$work/why"
      return 1
    fi
    mkfifo "$orders"
    ip -n "$switch" link delete "port$1"
    ip netns exec "$switch" "$HAUL_CLUSTER/cluster_wire" "$(host "$1")" wire "port$1" "$orders" \
      $((seed + $1)) >"$work/relay$1" 2>"$work/why" &
    processes+=("$!")
    await grep -q ready "$work/relay$1" || return 1
    plug_in "$1"
  fi
  printf '%b\n' "$2" >"$orders"
}

# spoil HOST KBIT MS PERMILLE: its link has this rate, this delay and this loss of 1000 packets, in
# both directions; 0: it does not. Sets $means, what does it; fails where nothing can, and says why in
# $work/why.
spoil() {
  local discipline=(netem limit 10000)
  : >"$work/why"
  (($2 == 0)) || discipline+=(rate "$2kbit")
  (($3 == 0)) || discipline+=(delay "$3ms")
  (($4 == 0)) || discipline+=(loss "$(($4 / 10)).$(($4 % 10))%")
  (($3 + $4 == 0)) && discipline=(tbf rate "$2kbit" burst 16k limit 32k)
  means=${discipline[0]}
  by_kernel "$1" "${discipline[@]}" && return
  means="a relay"
  by_relay "$1" "rate $2\ndelay $3\nloss $4"
}

# improve HOST: its link is as it was.
improve() {
  if [[ -p $work/wire$1 ]]; then
    by_relay "$1" "rate 0\ndelay 0\nloss 0"
  else
    on "$1" tc qdisc delete dev wire root
    ip netns exec "$switch" tc qdisc delete dev "port$1" root
  fi
}

# start_node NUMBER OPTION…: with a region for each other one to write to.
start_node() {
  local number=$1 one regions=()
  shift
  for one in "${everybody[@]}"; do
    [[ $one == "$number" ]] || regions+=(--region "from$one-at$number=host:$region")
  done
  : >"$work/node$number"
  ip netns exec "$(host "$number")" "$HAUL" serve --name "node$number" --listen "tcp://$(address "$number"):7420" "${regions[@]}" "$@" \
    >"$work/node$number" 2>"$work/node$number.err" &
  servers[number]=$!
  processes+=("$!")
}

# node_is_up NUMBER
node_is_up() { grep -q "^listening on " "$work/node$1"; }

# start_nodes OPTION…: all of them.
start_nodes() {
  local one
  for one in "${everybody[@]}"; do start_node "$one" "$@"; done
  for one in "${everybody[@]}"; do
    await node_is_up "$one" && continue
    cp "$work/node$one.err" "$work/err"
    failed "node $one starts"
    exit 1
  done
}

# restart_node NUMBER OPTION…: after kill_node. Fails, with the node's error, if it does not start.
restart_node() {
  start_node "$@"
  await node_is_up "$1" && return
  cp "$work/node$1.err" "$work/err"
  return 1
}

# kill_node NUMBER, stop_node NUMBER: at once; and as a machine that hangs, until continue_node.
kill_node() {
  slay "${servers[$1]}"
  unset "servers[$1]"
}
stop_node() { freeze "${servers[$1]}"; }
continue_node() { kill -CONT "${servers[$1]}"; }

# target FROM TO: the region at TO which is FROM's to write. By name where $directory is set.
target() {
  if [[ -n ${directory-} ]]; then
    echo "$directory/node$2/from$1-at$2"
  else
    echo "$(address "$2")/from$1-at$2"
  fi
}

# seeded_files BYTES NAME…: all different, and the same with the same seed.
seeded_files() {
  (cd "$work" && python3 - "$seed" "$@") <<'END'
import random, sys
seed, size = sys.argv[1], int(sys.argv[2])
for name in sys.argv[3:]:
    with open(name, "wb") as file:
        file.write(random.Random(f"{seed} {name}").getrandbits(8 * size).to_bytes(size, "little"))
END
}

# make_files BYTES: $work/file.FROM-TO, what each writes to each.
make_files() {
  local pairs
  bytes=$1
  mapfile -t pairs < <(pairs_of "${everybody[@]}")
  seeded_files "$bytes" "${pairs[@]/#/file.}"
}

# begin NAME COMMAND…: beside the others; its exit status and what it said are looked at by that name.
begin() {
  local name=$1
  shift
  rm -f "$work/$name.status"
  {
    "$@" >"$work/$name.out" 2>"$work/$name.err"
    echo $? >"$work/$name.status"
  } &
  clients+=("$!")
  processes+=("$!")
}
# join: waits for all that was begun.
join() {
  wait "${clients[@]}"
  clients=()
}

# exchange FROM TO [SECONDS]: FROM writes its file for TO there, reads it back, and compares every byte.
exchange() {
  local copy=$work/copy.$1-$2 deadline=${3:-45} at status
  at=$(target "$1" "$2")
  within $((deadline + 20)) "$1" "$HAUL" put "$work/file.$1-$2" "$at" --quiet --timeout "$deadline" || return
  within $((deadline + 20)) "$1" "$HAUL" get "$at" "$copy" --length "$bytes" --quiet --timeout "$deadline" ||
    return
  cmp "$work/file.$1-$2" "$copy"
  status=$?
  rm -f "$copy"
  return $status
}

# pairs_of HOST…: each with each, as FROM-TO.
pairs_of() {
  local a b
  for a; do
    for b; do
      [[ $a == "$b" ]] || echo "$a-$b"
    done
  done
}

# begin_exchanges FROM-TO…: they go on together.
begin_exchanges() {
  local one
  for one; do begin "$one" exchange "${one%-*}" "${one#*-}"; done
}

# exchange_all WHAT FROM-TO…
exchange_all() {
  begin_exchanges "${@:2}"
  join
  each "$1" is_whole "${@:2}"
}

# halfway NAME BYTES: passes BYTES on, and the rest after `go_on`.
halfway() {
  head -c "$2"
  : >"$work/$1.begun"
  while [[ -d $work && ! -e $work/go ]]; do sleep 0.05; done
  cat
}
go_on() { : >"$work/go"; }

# held_put NAME FROM TO SECONDS: starts a put that pauses halfway until `go_on`.
held_put() {
  halfway "$1" 8M <"$work/large" 2>/dev/null |
    within $(($4 + 20)) "$2" "$HAUL" put - "$(target "$2" "$3")" --partial --quiet --timeout "$4"
  return "${PIPESTATUS[1]}"
}
# held_get NAME FROM TO SECONDS: FROM reads what there is at TO, of which `haul get` has 16 MiB under way.
held_get() {
  within $(($4 + 20)) "$2" "$HAUL" get "$(target "$2" "$3")" - --quiet --timeout "$4" |
    halfway "$1" 1M >/dev/null 2>&1
  return "${PIPESTATUS[0]}"
}

# begin_held put|get SECONDS FROM-TO…: named put.FROM-TO; returns when all have begun.
begin_held() {
  local kind=$1 within=$2 one
  shift 2
  rm -f "$work/go"
  for one; do
    rm -f "$work/$kind.$one.begun"
    begin "$kind.$one" "held_$kind" "$kind.$one" "${one%-*}" "${one#*-}" "$within"
  done
  each "each $kind has begun" has_begun "${@/#/$kind.}"
}
has_begun() { await test -e "$work/$1.begun"; }

# make_large: what held puts move.
make_large() { seeded_files $((16 << 20)) large; }

# came_whole FROM-TO: read back, it is what was put.
came_whole() {
  within 60 "${1%-*}" "$HAUL" get "$(target "${1%-*}" "${1#*-}")" - --quiet --length 16M --timeout 50 \
    2>"$work/$1.err" | cmp - "$work/large"
}

# each WHAT TEST NAME…: the test holds for every name.
each() {
  local what=$1 test=$2 one wrong=()
  shift 2
  for one; do
    "$test" "$one" >/dev/null 2>&1 || wrong+=("$one")
  done
  : >"$work/out"
  : >"$work/err"
  if (($# > 0 && ${#wrong[@]} == 0)); then
    passed "$what ($#)"
  else
    cat "$work/${wrong[0]-}.err" >"$work/err" 2>/dev/null
    failed "$what: not ${wrong[*]-} ($(cat "$work/${wrong[0]-}.status" 2>/dev/null))"
  fi
}

is_whole() { [[ $(cat "$work/$1.status") == 0 ]]; }
# By its deadline, else it would have been ended by timeout(1); with an error, and what to do about it.
is_broken() {
  [[ $(cat "$work/$1.status") == 1 ]] &&
    awk 'NR == 1 && !/^haul: / { bad = 1 } NR == 2 && !/^hint: / { bad = 1 } END { exit bad || NR != 2 }' \
      "$work/$1.err"
}

# shuffle WORD…: sets $shuffled to them, in an order that the seed chooses. A subshell would have a seed of
# its own.
shuffle() {
  local i j swap
  shuffled=("$@")
  for ((i = $# - 1; i > 0; i--)); do
    j=$((RANDOM % (i + 1)))
    swap=${shuffled[i]} shuffled[i]=${shuffled[j]} shuffled[j]=$swap
  done
}

# is_empty NAMESPACE: no process is in it.
is_empty() { [[ -z $(ip netns pids "$1") ]]; }
no_namespace() { ! ip netns list | grep -q "^$tag-"; }

# cluster_end: all that was made goes, and that is looked at.
cluster_end() {
  local one status ended=0
  section "the end"
  for one in "${servers[@]}"; do kill -TERM "$one"; done
  for one in "${servers[@]}"; do
    wait "$one"
    status=$?
    ((status == 0)) && ended=$((ended + 1))
  done
  holds "the nodes end with status 0 when they are told to" test "$ended" = ${#servers[@]}
  for one in "${networks[@]}"; do
    [[ $one == "$switch" ]] || holds "nobody is left in $one" is_empty "$one"
  done
  holds "no unfinished file is left" test -z "$(find "$work" -name '*.haul-*')"
  tear_down
  networks=() processes=()
  holds "no namespace is left" no_namespace
  holds "no file is left" test ! -e "$work"
  finish
}
