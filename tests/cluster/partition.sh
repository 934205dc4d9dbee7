#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The switch falls into two in the middle of transfers, what one host sends another is lost, a cable is
# pulled out. Transfers across the cut fail by their deadline, all others continue, and afterwards all
# hosts work again.
here=$(dirname "$0")
# shellcheck source=tests/cluster/lib.sh
. "$here/lib.sh"

cluster_up
make_files 300007
make_large
shuffle "${everybody[@]}"
order=("${shuffled[@]}")
mapfile -t all_pairs < <(pairs_of "${everybody[@]}")
left=("${order[@]:0:4}") right=("${order[@]:4}")
deadline=20 # of who is cut off
ample=55    # of everybody else

# A transfer each to its neighbour on its side, and to one on the other side.
inside=() across=()
for i in 0 1 2 3; do
  j=$(((i + 1) % 4))
  inside+=("${left[i]}-${left[j]}" "${right[i]}-${right[j]}")
  across+=("${left[i]}-${right[i]}" "${right[i]}-${left[j]}")
done

section "eight nodes"
start_nodes
begin_held put $ample "${across[@]}"
go_on
join
each "puts from one side to the other end well" is_whole "${across[@]/#/put.}"
each "and every byte is there" came_whole "${across[@]}"

section "the switch falls into ${left[*]} and ${right[*]}"
begin_held put $ample "${inside[@]}"
begin_held put $deadline "${across[@]}"
begin_held get $deadline "${across[@]}"
part "${right[@]}"
go_on
join
each "puts within a side go on" is_whole "${inside[@]/#/put.}"
each "and every byte is there" came_whole "${inside[@]}"
each "puts across end with an error by their deadline" is_broken "${across[@]/#/put.}"
each "and so do gets" is_broken "${across[@]/#/get.}"
begin_exchanges "${inside[@]}"
for pair in "${across[@]}"; do begin "$pair" exchange "${pair%-*}" "${pair#*-}" 3; done
join
each "new transfers within a side work" is_whole "${inside[@]}"
each "and across they end with an error" is_broken "${across[@]}"
heal "${right[@]}"
exchange_all "once it is one again all work, each with each" "${all_pairs[@]}"

a=${order[0]} b=${order[1]} c=${order[2]}
section "what $a sends to $b is lost"
between=("$a-$b" "$b-$a")
beside=("$a-$c" "$c-$a" "$b-$c" "$c-$b")
begin_held put $ample "${beside[@]}"
begin_held put $deadline "${between[@]}"
begin_held get $deadline "$a-$b"
lose "$a" "$b"
go_on
join
each "puts end with an error by their deadline, both ways" is_broken "${between[@]/#/put.}"
each "and so does a get" is_broken "get.$a-$b"
each "puts by way of others go on" is_whole "${beside[@]/#/put.}"
each "and every byte is there" came_whole "${beside[@]}"
for pair in "${between[@]}"; do begin "$pair" exchange "${pair%-*}" "${pair#*-}" 3; done
join
each "no new transfer comes about, and that is said" is_broken "${between[@]}"
find_again "$a" "$b"
exchange_all "then all work, each with each" "${all_pairs[@]}"

section "the cable of $a is out for a second"
mapfile -t touched < <(pairs_of "$a" "$b" "$c")
begin_held put $ample "${touched[@]}"
pull_out "$a"
go_on
sleep 1
put_in "$a"
join
each "all go on" is_whole "${touched[@]/#/put.}"
each "and every byte is there" came_whole "${touched[@]}"

cluster_end
