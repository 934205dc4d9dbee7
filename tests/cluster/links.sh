#!/bin/bash
# SPDX-License-Identifier: MIT
#
# One of eight nodes has a link that is narrow, slow or lossy: every byte arrives all the same, and what
# the others do among each other does not wait for it.
here=$(dirname "$0")
# shellcheck source=tests/cluster/lib.sh
. "$here/lib.sh"

cluster_up
make_files 300007
make_large
shuffle "${everybody[@]}"
order=("${shuffled[@]}")
bad=${order[0]} others=("${order[@]:1}")
mapfile -t all_pairs < <(pairs_of "${everybody[@]}")
mapfile -t other_pairs < <(pairs_of "${others[@]}")
touched=()
for one in "${others[@]}"; do touched+=("$bad-$one" "$one-$bad"); done

# goes_on NAME: it has not ended.
goes_on() { [[ ! -e $work/$1.status ]]; }
# resent HOST: segments that TCP sent again.
resent() { on "$1" awk '/^Tcp:/ && $13 ~ /[0-9]/ { print $13 }' /proc/net/snmp; }
# takes_at_least MS HOST: to make a connection to it.
takes_at_least() {
  local from=$EPOCHREALTIME to
  # shellcheck disable=SC2016 # the inner shell's to expand
  within 20 "$2" bash -c 'exec 3<>"/dev/tcp/$0/7420"' "$(address "$bad")" || return
  to=$EPOCHREALTIME
  (((${to/[.,]/} - ${from/[.,]/}) / 1000 >= $1))
}

section "eight nodes"
start_nodes
exchange_all "each writes to each and reads back" "${all_pairs[@]}"

section "the link of $bad is narrow"
if spoil "$bad" 1000 0 0; then
  passed "1 Mbit/s, by $means"
  # 16 MiB take minutes so.
  puts=("$bad-${others[0]}" "${others[1]}-$bad")
  go_on
  for pair in "${puts[@]}"; do
    begin "put.$pair" held_put "put.$pair" "${pair%-*}" "${pair#*-}" 200
  done
  waiting=("${clients[@]}") clients=()
  exchange_all "the others write to each other and read back" "${other_pairs[@]}"
  each "while $bad is at it still" goes_on "${puts[@]/#/put.}"
  sleep 8
  each "also after the liveness timeout: who is slow is not gone" goes_on "${puts[@]/#/put.}"
  spoil "$bad" 20000 0 0
  wait "${waiting[@]}"
  each "at 20 Mbit/s it ends well too" is_whole "${puts[@]/#/put.}"
  improve "$bad"
  each "and every byte is there" came_whole "${puts[@]}"
else
  skipped "a narrow link: $(tail -n 1 "$work/why")"
fi

section "the link of $bad is slow"
if spoil "$bad" 0 40 0; then
  passed "40 ms each way, by $means"
  holds "so a connection takes a while" takes_at_least 80 "${others[0]}"
  exchange_all "each writes to each and reads back" "${all_pairs[@]}"
  improve "$bad"
else
  skipped "a slow link: $(tail -n 1 "$work/why")"
fi

section "the link of $bad is lossy"
before=$(resent "$bad")
if spoil "$bad" 0 0 20; then
  passed "2 % each way, by $means"
  exchange_all "it writes to each and reads back, and each to it" "${touched[@]}"
  holds "some was sent again" test "$(resent "$bad")" -gt "$before"
  improve "$bad"
else
  skipped "a lossy link: $(tail -n 1 "$work/why")"
fi

section "the link of $bad is narrow, slow and lossy"
if spoil "$bad" 20000 10 5; then
  passed "20 Mbit/s, 10 ms and 0.5 %, by $means"
  exchange_all "each writes to each and reads back" "${all_pairs[@]}"
else
  skipped "all at a time: $(tail -n 1 "$work/why")"
fi

cluster_end
