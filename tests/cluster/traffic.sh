#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Eight nodes with a key: every one writes to every other one and reads back, all at a time.
here=$(dirname "$0")
# shellcheck source=tests/cluster/lib.sh
. "$here/lib.sh"

cluster_up
make_files 1000003
mapfile -t all_pairs < <(pairs_of "${everybody[@]}")

section "eight nodes"
start_nodes
passed "they listen, each at its own address"
expect_on 1 1 "without the key nobody comes in" env -u HAUL_KEY "$HAUL" ls "$(address 2)" --timeout 5
complains_briefly

section "each with each"
exchange_all "what was written is read back, every byte" "${all_pairs[@]}"

# look_at FROM-TO: another host reads at TO the bytes that FROM wrote.
look_at() {
  local from=${1%-*} to=${1#*-} reader
  reader=$((from % nodes + 1))
  [[ $reader == "$to" ]] && reader=$((to % nodes + 1))
  within 60 "$reader" "$HAUL" get "$(target "$from" "$to")" "$work/look.$1" \
    --length "$bytes" --checksum --quiet --timeout 45 && cmp "$work/file.$1" "$work/look.$1"
}
for pair in "${all_pairs[@]}"; do begin "look.$pair" look_at "$pair"; done
join
each "and so by a third node, with a checksum" is_whole "${all_pairs[@]/#/look.}"

section "a session of two, eight times at a time"
for number in "${everybody[@]}"; do
  begin "server$number" within 60 "$number" "$HAUL" pingpong --server --listen "tcp://$(address "$number"):20000" --place host
done
is_listening() { await grep -q "^listening on " "$work/$1.out"; }
each "the servers listen" is_listening "${everybody[@]/#/server}"
for number in "${everybody[@]}"; do
  begin "client$number" within 60 "$number" "$HAUL" pingpong "$(address $((number % nodes + 1))):20000" --place host --size 256K
done
join
each "the servers are content" is_whole "${everybody[@]/#/server}"
each "the clients are content" is_whole "${everybody[@]/#/client}"

cluster_end
