#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul push to one host, and then to COUNT of them, on a switch: each is a network namespace whose link has a
# token bucket filter of RATE in each direction. One in twenty receivers is killed under way and started again.
# All bytes are equal. The times are printed for comparison only: the processors of this machine are shared by
# all hosts.
#
#   hosts.sh [COUNT [RATE [BYTES]]]
# shellcheck source=tests/cluster/switch.sh
. "$(dirname "$0")/../cluster/switch.sh"

count=${1:-16} rate=${2:-80mbit} bytes=${3:-16777216}
pulls=() # processes, by number

limit() { # NAMESPACE INTERFACE
  ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$rate" burst 128k limit 512k 2>"$work/err" ||
    skip_all "a broadcast: no token bucket filter: $(cat "$work/err")"
}

make_switch switch
for ((i = 1; i <= count + 1; i++)); do # 1: the source
  add_host "$i"
  limit "$(host "$i")" wire
  limit "$switch" "port$i"
done
random_file "$work/source" "$bytes"

# start_pull HOST: not by `on`, whose process would be a shell's.
start_pull() {
  ip netns exec "$(host "$1")" "$HAUL" pull "$(address 1)/weights" "$work/copy$1" --member "host$1" --insecure --json --timeout 200 \
    >"$work/pull$1" 2>"$work/pull$1.err" &
  pulls[$1]=$!
  processes+=("$!")
}

# start_push RECEIVERS: they wait until all are there.
start_push() {
  rm -f "$work"/copy*
  ip netns exec "$(host 1)" "$HAUL" push "$work/source" --name weights --listen "$(address 1)" --insecure --json \
    --await "$1" --receivers "$1" >"$work/out" 2>"$work/err" &
  push=$!
  processes+=("$push")
  await grep -q "^listening on" "$work/err" || failed "haul push starts"
}

# end_push RECEIVERS: sets $micros.
end_push() {
  local one
  if wait "$push"; then passed "all are complete"; else failed "all are complete"; fi
  micros=$(json 'int(it["time_us"])')
  for ((one = 2; one <= $1 + 1; one++)); do
    wait "${pulls[one]}" || { cp "$work/pull$one.err" "$work/err"; failed "haul pull of host $one"; }
    cmp "$work/source" "$work/copy$one" >"$work/err" 2>&1 || failed "the bytes of host $one"
  done
  ((failures > 0)) || passed "all bytes are equal"
}

# passed_over: how often, and why.
passed_over() {
  cat "$work"/pull*[0-9] | sed -n 's/.*"passed_over": "\(..*\)"/\1/p' | sort | uniq -c | sed 's/^ */        passed over: /'
}

seconds() { awk -v t="$1" 'BEGIN { printf "%.2f s", t / 1e6 }'; }

section "1 to 1, $bytes bytes at $rate"
start_push 1
start_pull 2
end_push 1
alone=$micros
echo "        $(seconds "$alone")"

section "1 to $count"
start_push "$count"
for ((i = 2; i <= count + 1; i++)); do start_pull "$i"; done
end_push "$count"
echo "        $(seconds "$micros"): $(awk -v a="$alone" -v b="$micros" 'BEGIN { printf "%.2f", b / a }') times 1 to 1"
echo "        from the source: $(cat "$work"/pull*[0-9] |
  awk -v all="$bytes" '/"source":/ { source = /true/ } /"bytes":/ && source { sum += $2; source = 0 } END { printf "%.2f", sum / all }') times the bytes"
passed_over

section "1 to $count, and one in twenty is killed under way"
start_push "$count"
for ((i = 2; i <= count + 1; i++)); do start_pull "$i"; done
await test -s "$work/copy2.part"
sleep "$(awk -v t="$alone" 'BEGIN { print t / 2e6 }')"
killed=0
for ((i = 5; i <= count + 1; i += 20)); do
  slay "${pulls[i]}"
  start_pull "$i"
  killed=$((killed + 1))
done
end_push "$count"
kept=$(sed -n 's/.*"kept": \([0-9]*\).*/\1/p' "$work/pull5")
echo "        $(seconds "$micros"), $killed killed and started again: $(awk -v a="$alone" -v b="$micros" 'BEGIN { printf "%.2f", b / a }') times 1 to 1; the first kept $kept bytes"
passed_over

finish
