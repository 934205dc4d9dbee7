# shellcheck shell=bash disable=SC2034,SC2154 # scripts use what is set here, and set $before
# SPDX-License-Identifier: MIT
#
# What scripts in the virtual machine share: all that the tests of the command do, and two hosts.
# A script sources this file, and ends with `finish` as those do.

# shellcheck source=tests/cli/lib.sh
. /haul/cli.sh
# shellcheck source=tests/vm/wire.sh
. /haul/wire.sh

v4_a=10.77.0.1 v4_b=10.77.0.2
v6_a=fd77::1 v6_b=fd77::2

# on_wire: bytes that went over Soft-RoCE's wire so far, in both directions.
on_wire() {
  echo $(($(cat /sys/class/net/eth0/statistics/tx_bytes) + $(cat /sys/class/net/eth0/statistics/rx_bytes)))
}

# moved BYTES: at least so many went over Soft-RoCE's wire since $before, which on_wire gave.
moved() { (($(on_wire) - before >= $1)); }

# The processor itself runs the machine, and not a program in its place.
is_fast() {
  grep -q 'haul.accel=kvm' /proc/cmdline
}

# serve_on HOST OPTIONS…: starts a node there, on both of its addresses. Sets $server, its process.
serve_on() {
  local host=$1 v4 v6
  shift
  eval "v4=\$v4_$host v6=\$v6_$host"
  on "$host" "$HAUL" serve --insecure --listen "tcp://$v4:7420" --listen "tcp://[$v6]:7420" "$@" \
    >"$work/serve" 2>"$work/serve.err" &
  server=$!
  processes+=("$server")
  await 20 has_lines 2 "^listening on " "$work/serve" && return
  failed "haul serve $*"
  cat "$work/serve.err"
  exit 1
}

# begin FILE TO OPTION…: a put over slow wires, of which a part is over when this returns, and more is to
# come. Sets $putter, its process.
begin() {
  local file=$1 to=$2
  shift 2
  spoil rate 50mbit
  before=$(on_wire)
  on a timeout 100 "$HAUL" put "$file" "$to" --timeout 60 "$@" >"$work/out" 2>"$work/err" &
  putter=$!
  processes+=("$putter")
  await 30 moved $(($(wc -c <"$file") / 32)) || failed "it does not begin"
}

# end: waits for what began. Sets $status.
end() {
  wait "$putter"
  status=$?
}

# gid_index DEVICE GID: at which index the device's port has it as one of RoCE v2. The GID is as sysfs
# writes it.
gid_index() {
  local port=/sys/class/infiniband/$1/ports/1 file
  for file in "$port"/gids/*; do
    [[ $(cat "$file") == "$2" ]] && grep -q '^RoCE v2$' "$port/gid_attrs/types/${file##*/}" || continue
    echo "${file##*/}"
    return
  done
  return 1
}

# all_ended REPORT: of the double of a NIC that takes dma-bufs: some were registered, all have ended, and
# no call was wrong.
all_ended() {
  awk '{ for (i = 2; i <= NF; i++) { split($i, pair, "="); sum[pair[1]] += pair[2] } }
    END { exit !(sum["registered"] && sum["registered"] == sum["ended"] && !sum["violations"]) }' "$1"
}

# Those of the two devices, without the number at the end: rxe0's are of 1, rxe1's of 2.
gid_v4=0000:0000:0000:0000:0000:ffff:0a4d:000
gid_v6=fd77:0000:0000:0000:0000:0000:0000:000
