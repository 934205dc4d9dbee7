#!/bin/bash
# SPDX-License-Identifier: MIT
#
# A world of eight ranks on eight hosts, as a launcher starts them: all write to all, every byte is
# compared; and when one of them is killed, hangs or is cut off the others' calls end by their deadline.
here=$(dirname "$0")
# shellcheck source=tests/cluster/lib.sh
. "$here/lib.sh"

cluster_up
bytes=200003

# begin_rank HOST ROUNDS JOIN SECONDS: with these deadlines for joining and for each other call. The ranks
# are the hosts' numbers, from 0 on.
begin_rank() {
  rm -f "$work/rank$1.out"
  begin "rank$1" within 60 "$1" env RANK=$(($1 - 1)) WORLD_SIZE=$nodes MASTER_ADDR="$(address 1)" \
    "$HAUL_CLUSTER/cluster_rank" $bytes "${@:2}" "$seed"
}
# begin_world ROUNDS JOIN SECONDS: in an order that the seed chooses.
begin_world() {
  local one
  shuffle "${everybody[@]}"
  for one in "${shuffled[@]}"; do begin_rank "$one" "$@"; done
}
ranks=("${everybody[@]/#/rank}")

has_joined() { await grep -q "^joined as $((${1#rank} - 1))$" "$work/$1.out"; }
is_done() { await grep -q "^done$" "$work/$1.out"; }
is_under_way() { await grep -q "^round 2$" "$work/$1.out"; }
# process_of NAME: nothing else is on its host.
process_of() { ip netns pids "$(host "${1#rank}")"; }
signal() { kill "-$1" "$(process_of "$2")"; }

# whole_world WHAT: a start, twenty rounds, and an end.
whole_world() {
  local one
  begin_world 20 30 30
  each "$1: all join" has_joined "${ranks[@]}"
  each "in twenty rounds all write to all, every byte is compared" is_done "${ranks[@]}"
  for one in "${ranks[@]}"; do signal TERM "$one"; done
  join
  each "and they end as they should" is_whole "${ranks[@]}"
}

# begin_endless: a world that goes on until it is hindered.
begin_endless() {
  begin_world 0 30 6
  each "all are under way" is_under_way "${ranks[@]}"
}

section "a world"
whole_world "eight ranks"

shuffle "${everybody[@]}"
order=("${shuffled[@]}")
victim=rank${order[0]} others=("${order[@]:1}")
others=("${others[@]/#/rank}")

section "$victim is killed"
begin_endless
signal KILL "$victim"
join
each "the others' calls end with an error by their deadline" is_broken "${others[@]}"
whole_world "the next world"

victim=rank${order[1]} others=("${order[0]}" "${order[@]:2}")
others=("${others[@]/#/rank}")
section "$victim hangs"
begin_endless
signal STOP "$victim"
hung=$(process_of "$victim")
has_ended() { await test -e "$work/$1.status"; }
each "the others' calls end" has_ended "${others[@]}"
each "with an error, by their deadline" is_broken "${others[@]}"
kill -CONT "$hung"
join
each "and so do its own when it goes on" is_broken "$victim"

section "hosts ${order[*]:0:3} are cut off"
begin_endless
part "${order[@]:0:3}"
join
each "all calls end with an error by their deadline" is_broken "${ranks[@]}"
begin_world 1 6 6
join
each "no world comes about, and all are told" is_broken "${ranks[@]}"
heal "${order[@]:0:3}"
whole_world "when it has healed"

cluster_end
