#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Two hosts, which are network namespaces joined by a wire: transfers, reasons of closed paths, and a
# wire that is cut, narrow or lossy.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

# A cut of one second may last two on a busy machine, and TCP then waits until 6.2 s for its next attempt.
export HAUL_LIVENESS=10s
local_host=haul-local-$$ remote_host=haul-remote-$$
local_v4=10.77.0.1 remote_v4=10.77.0.2
local_v6=fd77::1 remote_v6=fd77::2

# make_host NAME
make_host() {
  ip netns add "$1" 2>"$work/err" || skip_all "two hosts: no network namespace: $(cat "$work/err")"
  networks+=("$1")
}

# plug_in HOST IPV4 IPV6
plug_in() {
  ip -n "$1" link set lo up
  ip -n "$1" link set wire addrgenmode none # no address that needs probing
  ip -n "$1" address add "$2/24" dev wire
  ip -n "$1" address add "$3/64" dev wire nodad 2>/dev/null
  ip -n "$1" link set wire up
}

cut() { ip -n "$local_host" link set wire down; }
rejoin() { ip -n "$local_host" link set wire up; }

# Prefixes of a command that select its host.
on_local=(ip netns exec "$local_host")
on_remote=(ip netns exec "$remote_host")
# Prefix of FILE and a command: replaces the boot id of the kernel by the file.
# shellcheck disable=SC2016 # the inner shell expands it
with_boot_id=(unshare --mount sh -c
  'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"' sh)

# serve_remote OPTIONS…: starts a node on the remote host. Sets $server, its process.
serve_remote() {
  start_listener "${on_remote[@]}" "$HAUL" serve --insecure "$@"
}

[[ $(id -u) == 0 ]] || skip_all "two hosts: only root may make network namespaces"
command -v ip >/dev/null || skip_all "two hosts: ip(8) is missing"
mountpoint -q / || skip_all "two hosts: ip-netns(8) needs / to be a mount point, unlike in this chroot"
make_host "$local_host"
make_host "$remote_host"
ip link add wire netns "$local_host" type veth peer name wire netns "$remote_host" 2>"$work/err" ||
  skip_all "two hosts: no wire between them: $(cat "$work/err")"
plug_in "$local_host" "$local_v4" "$local_v6"
plug_in "$remote_host" "$remote_v4" "$remote_v6"
random_file "$work/file" 20000003

section "listening"
expect 1 "serve on the wire without --insecure" "${on_remote[@]}" "$HAUL" serve --listen "tcp://$remote_v4:0"
complains "without a key"
complains "^hint: .*--insecure"
complains_briefly
listeners=(--listen "tcp://$remote_v4") # port 7420
hosts=("$remote_v4")
if [[ -n $(ip -n "$remote_host" -6 address show dev wire) ]]; then
  listeners+=(--listen "tcp://[$remote_v6]:7420")
  hosts+=("[$remote_v6]")
else
  skipped "two hosts over IPv6: this kernel lacks it"
fi
serve_remote "${listeners[@]}" --region a=host:64M --region kv=sim:0:64M --echo
holds "serve listens there with --insecure" has_lines ${#hosts[@]} "^listening on tcp://.*:7420$" "$work/serve"
expect 0 "ls by an address without a port" "${on_local[@]}" "$HAUL" ls "tcp://$remote_v4"

for host in "${hosts[@]}"; do
  section "over $host"
  expect 0 "ls" "${on_local[@]}" "$HAUL" ls "$host"
  says "^a  *64.00 MiB  *host  *read-write$"
  for region in a kv; do
    expect 0 "put into $region" "${on_local[@]}" "$HAUL" put "$work/file" "$host/$region" --checksum
    says "path tcp, 2 rails"
    says "checksum verified"
    expect 0 "get from $region" "${on_local[@]}" "$HAUL" get "$host/$region" "$work/copy" --length 20000003
    holds "the bytes are the same" cmp "$work/file" "$work/copy"
    rm -f "$work/copy"
  done
  expect 0 "bench" "${on_local[@]}" "$HAUL" bench "$host" --sizes 64,1M --duration 0.1
  expect 0 "bench of messages" "${on_local[@]}" "$HAUL" bench "$host" --op message --sizes 64 --duration 0.1
done

section "why not map"
expect 0 "explain between two network namespaces" "${on_local[@]}" "$HAUL" explain host "$remote_v4/a"
says "^tcp  *chosen"
says "^map  *closed .*another network namespace"
expect 1 "put over map alone" "${on_local[@]}" "$HAUL" put "$work/file" "$remote_v4/a" --only map --timeout 2
complains "not map: .*another network namespace"
complains_briefly
echo 01234567-89ab-cdef-0123-456789abcdef >"$work/boot"
if "${with_boot_id[@]}" "$work/boot" true 2>"$work/err"; then
  expect 0 "explain between two machines" "${with_boot_id[@]}" "$work/boot" "${on_local[@]}" \
    "$HAUL" explain host "$remote_v4/a"
  says "^map  *closed .*the peer is on another host (boot id differs)"
  expect 0 "explain without a boot id" "${with_boot_id[@]}" /dev/null "${on_local[@]}" \
    "$HAUL" explain host "$remote_v4/a"
  says "^map  *closed .*cannot read its boot id"
else
  skipped "two machines: $(cat "$work/err")"
fi

section "a wire that is cut for a second"
{
  head -c 8M "$work/file"
  cut
  sleep 1
  rejoin
  tail -c +$(((8 << 20) + 1)) "$work/file"
} | "${on_local[@]}" timeout 30 "$HAUL" put - "$remote_v4/a" --partial >"$work/out" 2>"$work/err"
holds "put survives" test "${PIPESTATUS[1]}" = 0
"${on_local[@]}" timeout 30 "$HAUL" get "$remote_v4/a" - --length 20000003 2>"$work/err" | {
  head -c 1M
  cut
  sleep 1
  rejoin
  cat
} >"$work/copy"
holds "get survives" test "${PIPESTATUS[0]}" = 0
holds "the bytes are the same" cmp "$work/file" "$work/copy"

section "a wire that stays cut"
# is_cut NAME: reports its begin and waits for the cut.
is_cut() {
  : >"$work/$1.begun"
  await test -e "$work/cut"
}
# run NAME LIVENESS COMMAND…: stores its exit status, which is timeout's 124 if it hangs.
run() {
  local name=$1 liveness=$2
  shift 2
  HAUL_LIVENESS=$liveness "${on_local[@]}" timeout 60 "$HAUL" "$@" 2>"$work/$name.err"
  echo $? >"$work/$name.status"
}
# ended NAME PATTERN: it ended with status 1, and with this error.
ended() {
  holds "$1 ends with status 1" test "$(cat "$work/$1.status")" = 1
  cp "$work/$1.err" "$work/err"
  complains "$2"
  complains_briefly
}
{ head -c 12M /dev/zero; is_cut put; head -c 12M /dev/zero; } 2>/dev/null |
  run put 3s put - "$remote_v4/a" --partial >/dev/null &
clients=($!)
run get 3s get "$remote_v4/a" - | { head -c 4M; is_cut get; cat; } >/dev/null &
clients+=($!)
run hasty 60s get "$remote_v4/a" - --timeout 5 | { head -c 4M; is_cut hasty; cat; } >/dev/null &
clients+=($!)
for name in put get hasty; do
  holds "$name has begun" await test -e "$work/$name.begun"
done
cut
: >"$work/cut"
expect 1 "ls fails" "${on_local[@]}" "$HAUL" ls "$remote_v4" --timeout 1
complains_briefly
wait "${clients[@]}"
ended put "the peer was silent for longer than the liveness timeout of 3 s"
ended get "the peer was silent for longer than the liveness timeout of 3 s"
ended hasty "did not end by its deadline"
is_alone() { [[ -z $("${on_remote[@]}" ss -Htn state established) ]]; }
holds "the node has closed the connections" await is_alone
rejoin
expect 0 "the node serves again" "${on_local[@]}" "$HAUL" put "$work/file" "$remote_v4/a" --checksum
expect 0 "get" "${on_local[@]}" "$HAUL" get "$remote_v4/a" "$work/copy" --length 20000003 --checksum
holds "the bytes are the same" cmp "$work/file" "$work/copy"

# bad_wire DISCIPLINE…: sets the queueing discipline of both ends.
bad_wire() {
  local host
  for host in "$local_host" "$remote_host"; do
    ip netns exec "$host" tc qdisc replace dev wire root "$@" 2>"$work/err" || return 1
  done
}
# verifies: put and get of the file.
verifies() {
  expect 0 "put" "${on_local[@]}" "$HAUL" put "$work/file" "$remote_v4/a" --checksum
  expect 0 "get" "${on_local[@]}" "$HAUL" get "$remote_v4/a" "$work/copy" --length 20000003 --checksum
  holds "the bytes are the same" cmp "$work/file" "$work/copy"
}
# dropped HOST: prints the number of dropped packets.
dropped() {
  ip netns exec "$1" tc -s qdisc show dev wire | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' | head -n 1
}
if ! command -v tc >/dev/null; then
  skipped "a bad wire: tc(8) is missing"
else
  section "a narrow wire that drops packets"
  if bad_wire tbf rate 400mbit burst 64k limit 128k; then
    verifies
    holds "packets were dropped" test "$(($(dropped "$local_host") + $(dropped "$remote_host")))" -gt 0
  else
    skipped "a narrow wire: $(head -n 1 "$work/err")"
  fi
  section "a wire that delays, loses, repeats and reorders"
  if bad_wire netem delay 2ms 1ms loss 1% duplicate 1% reorder 10%; then
    verifies
  else
    skipped "a lossy wire: no netem: $(head -n 1 "$work/err")"
  fi
fi

section "files of the other host"
mkdir "$work/tree" "$work/point"
cp "$work/file" "$work/tree/large"
if "$HAUL" serve --listen tcp://127.0.0.1:0 --export "$work/nowhere" 2>&1 | grep -q "cannot export $work"; then
  first=$server
  serve_remote --listen "tcp://$remote_v4:7421" --export "tree=$work/tree:rw"
  expect 0 "ls" "${on_local[@]}" "$HAUL" ls "$remote_v4:7421/tree"
  says "^large"
  rm -f "$work/copy"
  expect 0 "get" "${on_local[@]}" "$HAUL" get "$remote_v4:7421/tree/large" "$work/copy"
  holds "the bytes are the same" cmp "$work/file" "$work/copy"
  expect 0 "put" "${on_local[@]}" "$HAUL" put "$work/file" "$remote_v4:7421/tree/new"
  holds "the bytes are the same" cmp "$work/file" "$work/tree/new"
  rm -f "$work/copy"
  "${on_local[@]}" timeout 30 "$HAUL" get "$remote_v4:7421/tree/large" - 2>"$work/err" | {
    head -c 1M
    cut
    sleep 1
    rejoin
    cat
  } >"$work/copy"
  holds "get survives a cut of one second" test "${PIPESTATUS[0]}" = 0
  holds "the bytes are the same" cmp "$work/file" "$work/copy"
  # ip-netns(8) runs its command in a mount namespace, so one command does all.
  # shellcheck disable=SC2016 # the inner shell expands it
  mounted='"$HAUL" mount "$1" "$2" || exit 3
    cmp "$3" "$2/small" && cp "$3" "$2/mounted"
    status=$?
    umount "$2"
    exit $status'
  if [[ -w /dev/fuse ]]; then
    head -c 1000003 "$work/file" >"$work/tree/small" # each request of a mount passes five processes
    expect 0 "a mount there" "${on_local[@]}" sh -c "$mounted" mounted \
      "haul://$remote_v4:7421/tree" "$work/point" "$work/tree/small"
    holds "the bytes are the same" cmp "$work/tree/small" "$work/tree/mounted"
  else
    skipped "a mount of files of the other host: /dev/fuse is missing"
  fi
  stop "$server"
  holds "serve ends with status 0" test "$status" = 0
  server=$first
else
  skipped "files of the other host: this haul was built without the module for files"
fi

section "the end"
stop "$server"
holds "serve ends with status 0 on SIGTERM" test "$status" = 0

finish
