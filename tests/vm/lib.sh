# shellcheck shell=bash disable=SC2034,SC2154 # scripts use what is set here, and set $before
# SPDX-License-Identifier: MIT
#
# Shared by scripts in the virtual machine: the library of the command's tests, and two hosts. A script
# sources this file and ends with `finish`.

# shellcheck source=tests/cli/lib.sh
. /haul/cli.sh
# shellcheck source=tests/vm/wire.sh
. /haul/wire.sh

v4_a=10.77.0.1 v4_b=10.77.0.2
v6_a=fd77::1 v6_b=fd77::2

# on_wire: bytes sent over Soft-RoCE's wire so far, in both directions.
on_wire() {
  echo $(($(cat /sys/class/net/eth0/statistics/tx_bytes) + $(cat /sys/class/net/eth0/statistics/rx_bytes)))
}

# moved BYTES: the wire carried at least BYTES since $before, a value of on_wire.
moved() { (($(on_wire) - before >= $1)); }

# Whether the machine runs on KVM.
is_fast() {
  grep -q 'haul.accel=kvm' /proc/cmdline
}

# serve_on HOST OPTIONS…: starts a node there, on both of its addresses. Sets $server, its process.
serve_on() {
  local host=$1 v4 v6
  shift
  eval "v4=\$v4_$host v6=\$v6_$host"
  : >"$work/serve" # the lines of an earlier serve would end the wait
  on "$host" "$HAUL" serve --insecure --listen "tcp://$v4:7420" --listen "tcp://[$v6]:7420" "$@" \
    >"$work/serve" 2>"$work/serve.err" &
  server=$!
  processes+=("$server")
  await has_lines 2 "^listening on " "$work/serve" && return
  failed "haul serve $*"
  cat "$work/serve.err"
  exit 1
}

# begin FILE TO OPTION…: starts a put over slow wires and returns in the middle of it. Sets $putter, its
# process.
begin() {
  local file=$1 to=$2
  shift 2
  impair rate 50mbit
  before=$(on_wire)
  on a timeout 100 "$HAUL" put "$file" "$to" --timeout 60 "$@" >"$work/out" 2>"$work/err" &
  putter=$!
  processes+=("$putter")
  await moved $(($(wc -c <"$file") / 32)) || failed "it does not begin"
}

# end: waits for the put that began. Sets $status.
end() {
  wait "$putter"
  status=$?
}

# gid_index DEVICE GID: the index of the RoCE v2 GID, in sysfs's notation, at the device's port.
gid_index() {
  local port=/sys/class/infiniband/$1/ports/1 file
  for file in "$port"/gids/*; do
    [[ $(cat "$file") == "$2" ]] && grep -q '^RoCE v2$' "$port/gid_attrs/types/${file##*/}" || continue
    echo "${file##*/}"
    return
  done
  return 1
}

# all_ended REPORT: the mock of dma-buf registration counted registrations, as many deregistrations, and
# no violation.
all_ended() {
  awk '{ for (i = 2; i <= NF; i++) { split($i, pair, "="); sum[pair[1]] += pair[2] } }
    END { exit !(sum["registered"] && sum["registered"] == sum["ended"] && !sum["violations"]) }' "$1"
}

# Prefixes of the two devices' GIDs: rxe0's end with 1, rxe1's with 2.
gid_v4=0000:0000:0000:0000:0000:ffff:0a4d:000
gid_v6=fd77:0000:0000:0000:0000:0000:0000:000
