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
# answers_in HOST: in how many milliseconds a connection of it to $bad is there.
answers_in() {
  local from=$EPOCHREALTIME to
  # shellcheck disable=SC2016 # the inner shell's to expand
  within 20 "$1" bash -c 'exec 3<>"/dev/tcp/$0/7420"' "$(address "$bad")"
  to=$EPOCHREALTIME
  echo $(((${to/[.,]/} - ${from/[.,]/}) / 1000))
}

section "eight nodes"
start_nodes
exchange_all "each writes to each and reads back" "${all_pairs[@]}"

section "the link of $bad is narrow"
if spoil "$bad" rate 1000; then
  passed "1 Mbit/s, by $means"
  # 16 MiB and more take minutes so; then the link is widened.
  slow=("$bad-${others[0]}" "${others[1]}-$bad")
  go_on
  begin "put.${slow[0]}" held_put "put.${slow[0]}" "$bad" "${others[0]}" 200
  begin "put.${slow[1]}" held_put "put.${slow[1]}" "${others[1]}" "$bad" 200
  waiting=("${clients[@]}") clients=()
  exchange_all "the others write to each other and read back" "${other_pairs[@]}"
  each "while $bad is at it still" goes_on "${slow[@]/#/put.}"
  improve "$bad" rate
  wait "${waiting[@]}"
  each "which ends well too, with the link as it was" is_whole "${slow[@]/#/put.}"
  each "and every byte is there" came_whole "${slow[@]}"
else
  skipped "a narrow link: $(head -n 1 "$work/why")"
fi

section "the link of $bad is slow"
if spoil "$bad" delay 40; then
  passed "40 ms each way, by $means"
  holds "so a connection takes a while" test "$(answers_in "${others[0]}")" -ge 80
  exchange_all "each writes to each and reads back" "${all_pairs[@]}"
  improve "$bad" delay
else
  skipped "a slow link: $(head -n 1 "$work/why")"
fi

section "the link of $bad is lossy"
before=$(resent "$bad")
if spoil "$bad" loss 20; then
  passed "2 % each way, by $means"
  exchange_all "it writes to each and reads back, and each to it" "${touched[@]}"
  holds "some was sent again" test "$(resent "$bad")" -gt "$before"
  improve "$bad" loss
else
  skipped "a lossy link: $(head -n 1 "$work/why")"
fi

section "the link of $bad is narrow, slow and lossy"
if [[ -p $work/wire$bad ]]; then
  for order in "rate 20000" "delay 10" "loss 5"; do echo "$order" >"$work/wire$bad"; done
  passed "20 Mbit/s, 10 ms and 0.5 %, by a relay"
  exchange_all "each writes to each and reads back" "${all_pairs[@]}"
else
  skipped "all at a time: the kernel did what was asked for, and has one discipline for each"
fi

cluster_end
