#!/bin/bash
# SPDX-License-Identifier: MIT
#
# A node is killed, or hangs, while seven others write to it and read from it: these get an error by
# their deadline, what they do among each other goes on, and when it is back all is as it was.
here=$(dirname "$0")
# shellcheck source=tests/cluster/lib.sh
. "$here/lib.sh"

cluster_up
make_files 300007
make_large
mapfile -t all_pairs < <(pairs_of "${everybody[@]}")
deadline=20 # of who deals with the one
ample=55    # of everybody else

# choose: sets $victim, $towards, a pair from each other one to it, and $among, these in a ring.
choose() {
  local i
  shuffle "${everybody[@]}"
  victim=${shuffled[0]} towards=() among=()
  for i in 1 2 3 4 5 6 7; do
    towards+=("${shuffled[i]}-$victim")
    among+=("${shuffled[i]}-${shuffled[i % 7 + 1]}")
  done
}

# begin_all: seven puts to the one and seven gets from it, and seven puts among the others.
begin_all() {
  begin_held put $ample "${among[@]}"
  begin_held put $deadline "${towards[@]}"
  begin_held get $deadline "${towards[@]}"
}
# look_at_all: how they ended.
look_at_all() {
  go_on
  join
  each "each put to it ends with an error by its deadline" is_broken "${towards[@]/#/put.}"
  each "and so does each get" is_broken "${towards[@]/#/get.}"
  each "puts among the others go on" is_whole "${among[@]/#/put.}"
  each "and every byte is there" came_whole "${among[@]}"
}

choose
section "eight nodes, and $victim is to die"
start_nodes
exchange_all "each writes to each and reads back" "${all_pairs[@]}"

section "it is killed"
begin_all
kill_node "$victim"
look_at_all
for pair in "${towards[@]}"; do begin "$pair" exchange "${pair%-*}" "$victim" 3; done
join
each "new transfers to it end with an error" is_broken "${towards[@]}"
holds "it starts again" restart_node "$victim"
exchange_all "each writes to each and reads back" "${all_pairs[@]}"

choose
section "$victim hangs"
begin_all
stop_node "$victim"
look_at_all
for pair in "${towards[@]}"; do begin "$pair" exchange "${pair%-*}" "$victim" 3; done
join
each "new transfers to it end with an error" is_broken "${towards[@]}"
continue_node "$victim"
exchange_all "it goes on, and each writes to each and reads back" "${all_pairs[@]}"

choose
section "$victim is killed, and at once there again"
begin_all
kill_node "$victim"
holds "it starts again" restart_node "$victim"
look_at_all
exchange_all "each writes to each and reads back" "${all_pairs[@]}"

cluster_end
