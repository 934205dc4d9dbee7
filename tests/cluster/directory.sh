#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Eight nodes find each other by name, in an etcd on a host of its own. A node that is killed, hangs or is
# cut off expires with its lease, and its entry returns with it.
here=$(dirname "$0")
# shellcheck source=tests/cluster/lib.sh
. "$here/lib.sh"

command -v etcd >/dev/null || skip_all "there is no etcd: tools/deps installs it"

etcd=9 # its host
observer=10
cluster_up $etcd $observer
make_files 300007
url=http://$(address $etcd)
directory=etcd://$(address $etcd)/cluster
ip netns exec "$(host $etcd)" etcd --data-dir "$work/etcd" --unsafe-no-fsync \
  --listen-client-urls "$url:2379" --advertise-client-urls "$url:2379" \
  --listen-peer-urls "$url:2380" --initial-advertise-peer-urls "$url:2380" \
  --initial-cluster "default=$url:2380" >"$work/etcd.log" 2>&1 &
etcd_process=$!
processes+=("$etcd_process")
lists() { on $observer "$HAUL" ls "$directory" --timeout 2; }
if ! await lists; then
  cp "$work/etcd.log" "$work/err"
  failed "etcd, or haul ls of it"
  cluster_end
fi

# Listed by a host that is none of them.
is_listed() { lists | grep -q "^node$1  *tcp://$(address "$1"):7420$"; }
comes() { await is_listed "$1"; }
goes() { await eval "lists | grep -q ^NODE && ! is_listed $1"; }
goes_all() { each "$1" goes "${@:2}"; }
comes_all() { each "$1" comes "${@:2}"; }
# by_name WHAT HOST…: each of them with each, by name.
by_name() {
  local pairs
  mapfile -t pairs < <(pairs_of "${@:2}")
  exchange_all "$1" "${pairs[@]}"
}

shuffle "${everybody[@]}"
order=("${shuffled[@]}")
victim=${order[0]} hung=${order[1]} lost=("${order[@]:2:2}") rest=("${order[@]:4}")
echo "order: ${order[*]}"
registered=(--register "$directory" --lease 2)

section "by name"
start_nodes "${registered[@]}"
comes_all "all are listed" "${everybody[@]}"
by_name "each writes to each and reads back" "${everybody[@]}"
# by_region FROM-TO: it has no need to know where the region is.
by_region() {
  within 60 "${1%-*}" "$HAUL" get "$directory/from${1%-*}-at${1#*-}" - --quiet \
    --length "$bytes" --timeout 45 | cmp - "$work/file.$1"
}
mapfile -t pairs < <(pairs_of "${order[@]}")
each "a region is found by its name alone" by_region "${pairs[@]:0:8}"

section "node $victim is killed"
kill_node "$victim"
goes_all "it goes when its lease ends" "$victim"
expect_on "$hung" 1 "a put to it by name" "$HAUL" put "$work/file.$hung-$victim" \
  "$(target "$hung" "$victim")" --timeout 5
complains "^hint: list the entries: haul ls .*/cluster$"
complains_briefly
by_name "the others find each other" "${order[@]:1}"
holds "it starts again" restart_node "$victim" "${registered[@]}"
comes_all "it comes back" "$victim"
by_name "and is written to and read by name" "$victim" "$hung" "${rest[0]}"

section "node $hung hangs"
stop_node "$hung"
goes_all "it goes when its lease ends" "$hung"
by_name "the others find each other" "$victim" "${lost[@]}" "${rest[@]}"
continue_node "$hung"
comes_all "it comes back" "$hung"
by_name "and is written to and read by name" "$victim" "$hung" "${rest[0]}"

section "node $victim starts while the directory hangs"
kill_node "$victim"
freeze "$etcd_process"
start_node "$victim" "${registered[@]}"
holds "it says what it waits for" await grep -q "waiting for etcd:.*, which does not respond" "$work/node$victim.err"
kill -CONT "$etcd_process"
holds "and starts" await node_is_up "$victim"
comes_all "it is listed" "$victim"

section "nodes ${lost[*]} are cut off"
part "${lost[@]}"
goes_all "they go when their leases end" "${lost[@]}"
expect_on "${lost[0]}" 1 "among themselves they find no directory" "$HAUL" ls "$directory" --timeout 2
complains_briefly
directory='' by_name "but each other, by address" "${lost[@]}"
by_name "the others find each other" "${rest[@]}" "$victim"
heal "${lost[@]}"
comes_all "they come back" "${lost[@]}"
by_name "and are written to and read by name" "${lost[@]}" "$victim"

section "the directory is cut off"
part $etcd
says_so() { await grep -q " warning unregistered " "$work/node$1.err"; }
each "all nodes say so" says_so "${everybody[@]}"
directory='' by_name "by address they go on" "${rest[@]}"
heal $etcd
comes_all "all are there again" "${everybody[@]}"
by_name "and are written to and read by name" "${everybody[@]}"

slay "$etcd_process"
cluster_end
