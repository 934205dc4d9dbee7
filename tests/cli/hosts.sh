#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Two hosts with a wire between them: network namespaces, each with one end of it. What goes over the
# wire, what is said of the path that cannot be, and what a wire costs that is cut, narrow or lossy.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

export HAUL_LIVENESS=3s # longer than a cut that transfers survive
near=haul-near-$$ far=haul-far-$$
near_v4=10.77.0.1 far_v4=10.77.0.2
near_v6=fd77::1 far_v6=fd77::2

# make_host NAME
make_host() {
  ip netns add "$1" 2>"$work/err" || skip_all "two hosts: no network namespace: $(cat "$work/err")"
  networks+=("$1")
}

# plug_in HOST IPV4 IPV6
plug_in() {
  ip -n "$1" link set lo up
  ip -n "$1" link set wire addrgenmode none # no address that has to be probed first
  ip -n "$1" address add "$2/24" dev wire
  ip -n "$1" address add "$3/64" dev wire nodad 2>/dev/null
  ip -n "$1" link set wire up
}

cut() { ip -n "$near" link set wire down; }
mend() { ip -n "$near" link set wire up; }

# Before a command: on which host it runs.
on_near=(ip netns exec "$near")
on_far=(ip netns exec "$far")
# Before FILE and a command: it finds the file where the kernel's boot id would be.
# shellcheck disable=SC2016 # the inner shell's to expand
with_boot_id=(unshare --mount sh -c
  'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"' sh)

# serve_far OPTIONS…: starts a node on the far host. Sets $server, its process.
serve_far() {
  : >"$work/serve" # what another one said would be taken for this one's
  "${on_far[@]}" "$HAUL" serve --insecure "$@" >"$work/serve" 2>"$work/serve.err" &
  server=$!
  processes+=("$server")
  await 10 grep -q "^listening on " "$work/serve" && return
  failed "haul serve $*"
  cat "$work/serve.err"
  exit 1
}

[[ $(id -u) == 0 ]] || skip_all "two hosts: only root may make network namespaces"
command -v ip >/dev/null || skip_all "two hosts: there is no ip(8)"
mountpoint -q / || skip_all "two hosts: ip-netns(8) wants / to be a mount, and in this chroot it is none"
make_host "$near"
make_host "$far"
ip link add wire netns "$near" type veth peer name wire netns "$far" 2>"$work/err" ||
  skip_all "two hosts: no wire between them: $(cat "$work/err")"
plug_in "$near" "$near_v4" "$near_v6"
plug_in "$far" "$far_v4" "$far_v6"
random_file "$work/file" 20000003

section "listening"
expect 1 "serve on the wire without saying so" "${on_far[@]}" "$HAUL" serve --listen "tcp://$far_v4:0"
complains "without a key"
complains "^hint: .*--insecure"
complains_briefly
listeners=(--listen "tcp://$far_v4") # port 7420
hosts=("$far_v4")
if [[ -n $(ip -n "$far" -6 address show dev wire) ]]; then
  listeners+=(--listen "tcp://[$far_v6]:7420")
  hosts+=("[$far_v6]")
else
  skipped "two hosts over IPv6: this kernel has none"
fi
serve_far "${listeners[@]}" --region a=host:64M --region kv=sim:0:64M --echo
holds "serve listens there with --insecure" has_lines ${#hosts[@]} "^listening on tcp://.*:7420$" "$work/serve"
expect 0 "ls by an address without a port" "${on_near[@]}" "$HAUL" ls "tcp://$far_v4"

for host in "${hosts[@]}"; do
  section "over $host"
  expect 0 "ls" "${on_near[@]}" "$HAUL" ls "$host"
  says "^a  *64.00 MiB  *host  *read-write$"
  for region in a kv; do
    expect 0 "put into $region" "${on_near[@]}" "$HAUL" put "$work/file" "$host/$region" --checksum
    says "path tcp, 2 rails"
    says "checksum verified"
    expect 0 "get from $region" "${on_near[@]}" "$HAUL" get "$host/$region" "$work/copy" --length 20000003
    holds "the bytes are the same" cmp "$work/file" "$work/copy"
    rm -f "$work/copy"
  done
  expect 0 "bench" "${on_near[@]}" "$HAUL" bench "$host" --sizes 64,1M --duration 0.1
  expect 0 "bench of messages" "${on_near[@]}" "$HAUL" bench "$host" --op message --sizes 64 --duration 0.1
done

section "why not map"
expect 0 "explain between two network namespaces" "${on_near[@]}" "$HAUL" explain host "$far_v4/a"
says "^tcp  *chosen"
says "^map  *closed .*another network namespace"
expect 1 "put over map alone" "${on_near[@]}" "$HAUL" put "$work/file" "$far_v4/a" --only map --timeout 2
complains "not map: .*another network namespace"
complains_briefly
echo 01234567-89ab-cdef-0123-456789abcdef >"$work/boot"
if "${with_boot_id[@]}" "$work/boot" true 2>"$work/err"; then
  expect 0 "explain between two machines" "${with_boot_id[@]}" "$work/boot" "${on_near[@]}" \
    "$HAUL" explain host "$far_v4/a"
  says "^map  *closed .*the peer is on another host (boot id differs)"
  expect 0 "explain where no boot id can be read" "${with_boot_id[@]}" /dev/null "${on_near[@]}" \
    "$HAUL" explain host "$far_v4/a"
  says "^map  *closed .*boot id could not be read"
else
  skipped "two machines: $(cat "$work/err")"
fi

section "a wire that is cut for a second"
{
  head -c 8M "$work/file"
  cut
  sleep 1
  mend
  tail -c +$(((8 << 20) + 1)) "$work/file"
} | "${on_near[@]}" timeout 30 "$HAUL" put - "$far_v4/a" >"$work/out" 2>"$work/err"
holds "put goes on" test "${PIPESTATUS[1]}" = 0
"${on_near[@]}" timeout 30 "$HAUL" get "$far_v4/a" - --length 20000003 2>"$work/err" | {
  head -c 1M
  cut
  sleep 1
  mend
  cat
} >"$work/copy"
holds "get goes on" test "${PIPESTATUS[0]}" = 0
holds "the bytes are the same" cmp "$work/file" "$work/copy"

section "a wire that stays cut"
# is_cut NAME: says that it has begun, and waits for the cut.
is_cut() {
  : >"$work/$1.begun"
  await 10 test -e "$work/cut"
}
# timed NAME COMMAND…: leaves its exit status and the seconds it took.
timed() {
  local name=$1 began
  shift
  "${on_near[@]}" timeout 30 "$HAUL" "$@" 2>"$work/$name.err"
  echo $? >"$work/$name.status"
  began=$(stat -c %Y "$work/cut")
  echo $(($(date +%s) - began)) >"$work/$name.seconds"
}
# ended NAME LIMIT PATTERN: status 1, within so many seconds, and with this error.
ended() {
  holds "$1 ends with status 1" test "$(cat "$work/$1.status")" = 1
  holds "within $2 seconds" test "$(cat "$work/$1.seconds")" -le "$2"
  cp "$work/$1.err" "$work/err"
  complains "$3"
  complains_briefly
}
{ head -c 12M /dev/zero; is_cut put; head -c 12M /dev/zero; } 2>/dev/null |
  timed put put - "$far_v4/a" >/dev/null &
clients=($!)
timed get get "$far_v4/a" - | { head -c 4M; is_cut get; cat; } >/dev/null &
clients+=($!)
timed hasty get "$far_v4/a" - --timeout 2 | { head -c 4M; is_cut hasty; cat; } >/dev/null &
clients+=($!)
for name in put get hasty; do
  holds "$name has begun" await 10 test -e "$work/$name.begun"
done
cut
: >"$work/cut"
expect 1 "ls finds no way" "${on_near[@]}" "$HAUL" ls "$far_v4" --timeout 1
complains_briefly
wait "${clients[@]}"
ended put 6 "the peer was silent for longer than the liveness bound of 3 s"
ended get 6 "the peer was silent for longer than the liveness bound of 3 s"
ended hasty 3 "did not end by its deadline"
is_alone() { [[ -z $("${on_far[@]}" ss -Htn state established) ]]; }
holds "the node has let them go too" await 10 is_alone
mend
expect 0 "the node serves again" "${on_near[@]}" "$HAUL" put "$work/file" "$far_v4/a" --checksum
expect 0 "and gives back" "${on_near[@]}" "$HAUL" get "$far_v4/a" "$work/copy" --length 20000003 --checksum
holds "the same bytes" cmp "$work/file" "$work/copy"

# bad_wire DISCIPLINE…: both ends of the wire queue like this.
bad_wire() {
  local host
  for host in "$near" "$far"; do
    ip netns exec "$host" tc qdisc replace dev wire root "$@" 2>"$work/err" || return 1
  done
}
# verifies: there and back.
verifies() {
  expect 0 "put" "${on_near[@]}" "$HAUL" put "$work/file" "$far_v4/a" --checksum
  expect 0 "get" "${on_near[@]}" "$HAUL" get "$far_v4/a" "$work/copy" --length 20000003 --checksum
  holds "the bytes are the same" cmp "$work/file" "$work/copy"
}
# dropped HOST: packets.
dropped() {
  ip netns exec "$1" tc -s qdisc show dev wire | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p' | head -n 1
}
if ! command -v tc >/dev/null; then
  skipped "a bad wire: there is no tc(8)"
else
  section "a narrow wire that drops what it has no room for"
  if bad_wire tbf rate 400mbit burst 64k limit 128k; then
    verifies
    holds "something was dropped" test "$(($(dropped "$near") + $(dropped "$far")))" -gt 0
  else
    skipped "a narrow wire: $(head -n 1 "$work/err")"
  fi
  section "a wire that delays, loses, repeats and mixes up"
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
  serve_far --listen "tcp://$far_v4:7421" --export "tree=$work/tree:rw"
  expect 0 "ls" "${on_near[@]}" "$HAUL" ls "$far_v4:7421/tree"
  says "^large"
  rm -f "$work/copy"
  expect 0 "get" "${on_near[@]}" "$HAUL" get "$far_v4:7421/tree/large" "$work/copy"
  holds "the bytes are the same" cmp "$work/file" "$work/copy"
  expect 0 "put" "${on_near[@]}" "$HAUL" put "$work/file" "$far_v4:7421/tree/new"
  holds "the bytes are the same" cmp "$work/file" "$work/tree/new"
  rm -f "$work/copy"
  "${on_near[@]}" timeout 30 "$HAUL" get "$far_v4:7421/tree/large" - 2>"$work/err" | {
    head -c 1M
    cut
    sleep 1
    mend
    cat
  } >"$work/copy"
  holds "get goes on where the wire was cut for a second" test "${PIPESTATUS[0]}" = 0
  holds "the bytes are the same" cmp "$work/file" "$work/copy"
  # ip-netns(8) gives its command mounts of its own, so all is done in one.
  # shellcheck disable=SC2016 # the inner shell's to expand
  mounted='"$HAUL" mount "$1" "$2" || exit 3
    cmp "$3" "$2/large" && cp "$3" "$2/mounted"
    status=$?
    umount "$2"
    exit $status'
  if [[ -w /dev/fuse ]]; then
    expect 0 "a mount there" "${on_near[@]}" sh -c "$mounted" mounted \
      "haul://$far_v4:7421/tree" "$work/point" "$work/file"
    holds "the bytes are the same" cmp "$work/file" "$work/tree/mounted"
  else
    skipped "a mount of files of the other host: there is no /dev/fuse"
  fi
  stop "$server"
  holds "serve ends with status 0" test "$status" = 0
  server=$first
else
  skipped "files of the other host: this haul was built without the module for files"
fi

section "the end"
stop "$server"
holds "serve ends with status 0 when it is told to" test "$status" = 0

finish
