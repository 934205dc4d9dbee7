#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Two containers that share only a folder with a Unix socket: each has its own PID, network, mount, IPC
# and UTS namespace, and may belong to another user. `map` works between them.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

# Prefixes of a command: a new container, and another user.
contained=(unshare --pid --fork --kill-child --mount-proc --net --mount --ipc --uts)
as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)

# serve_contained SOCKET PREFIX…: starts a node in a container. Sets $container, the outermost process,
# $server, the node, and $unix, its address.
serve_contained() {
  unix=unix://$1
  shift
  : >"$work/serve"
  "${contained[@]}" "$@" env HAUL_ANY_USER=1 "$HAUL" serve --listen "$unix" --region host=host:64M \
    --region sim=sim:0:64M --file file="$work/file" >"$work/serve" 2>"$work/serve.err" &
  container=$!
  processes+=("$container")
  await grep -q "^listening on " "$work/serve"
  listens=$?
  server=$(pgrep -P "$container")
  processes+=("$server") # a node of another user outlives the outermost process
  if ((listens != 0)); then
    failed "haul serve $unix"
    cat "$work/serve.err"
    exit 1
  fi
}

# there_and_back PREFIX…: put and get by a command with this prefix.
there_and_back() {
  local region
  for region in host sim; do
    expect 0 "put into $region" "$@" "$HAUL" put "$work/file" "$unix/$region" --only map --checksum
    says "path map, mapped"
    says "checksum verified"
    expect 0 "get from $region" "$@" "$HAUL" get "$unix/$region" - --only map --checksum \
      --length 20000003
    stderr_has "path map, mapped"
    holds "the bytes are the same" cmp "$work/file" "$work/out"
  done
  expect 0 "get of the published file" "$@" "$HAUL" get "$unix/file" - --only map
  holds "the bytes are the same" cmp "$work/file" "$work/out"
}

[[ $(id -u) == 0 ]] || skip_all "containers: only root can create them"
"${contained[@]}" true 2>"$work/err" || skip_all "containers: $(head -n 1 "$work/err")"
random_file "$work/file" 20000003
chmod 755 "$work"
mkdir "$work/shared"

section "both in containers"
serve_contained "$work/shared/sock"
there_and_back "${contained[@]}"
expect 0 "explain" "${contained[@]}" "$HAUL" explain host "$unix/host"
says "^map  *chosen .*mapped"
says "^tcp  *open "
expect 0 "put over tcp" "${contained[@]}" "$HAUL" put "$work/file" "$unix/host" --only tcp --checksum
says "path tcp, over a Unix socket"
expect 0 "bench" "${contained[@]}" "$HAUL" bench "$unix" --sizes 8,1M --duration 0.1 --json
holds_json "over map" 'all(r["path"] == "map" for r in it["results"])'

section "only the node in a container"
there_and_back env

section "as another user"
if "${as_nobody[@]}" "$HAUL" --version >/dev/null 2>"$work/err"; then
  expect 1 "the socket's permissions count" "${contained[@]}" "${as_nobody[@]}" "$HAUL" ls "$unix"
  complains "Permission denied"
  complains_briefly
  chmod 666 "$work/shared/sock"
  there_and_back "${contained[@]}" "${as_nobody[@]}"
  mkdir -m 777 "$work/nobodys"
  root=$container
  serve_contained "$work/nobodys/sock" "${as_nobody[@]}"
  there_and_back "${contained[@]}"
  slay "$server"
  container=$root
else
  skipped "another user: it may not run $HAUL: $(head -n 1 "$work/err")"
fi
server=$(pgrep -P "$container")
unix=unix://$work/shared/sock

section "a container that is killed"
# start_put: starts a put in a container that has sent some bytes and waits. Sets $client.
start_put() {
  mkfifo "$work/pipe"
  "${contained[@]}" timeout 30 "$HAUL" put - "$unix/host" --partial <"$work/pipe" >"$work/out" 2>"$work/err" &
  client=$!
  processes+=("$client")
  exec 9>"$work/pipe"
  head -c 12M /dev/zero >&9
  rm "$work/pipe"
}
start_put
slay "$client"
exec 9>&-
expect 0 "the node survives its client" "${contained[@]}" "$HAUL" put "$work/file" "$unix/host"
start_put
kill -KILL "$server"
head -c 12M /dev/zero >&9 2>/dev/null &
began=$SECONDS
wait "$client"
status=$?
exec 9>&-
holds "put fails when the node is killed" test "$status" = 1
holds "at once, not after the liveness timeout" test $((SECONDS - began)) -le 2
complains "ended" # its process, or its data connections, whichever ends first
complains_briefly
wait "$container" 2>/dev/null
holds "the socket is left behind" test -S "$work/shared/sock"
serve_contained "$work/shared/sock"
expect 0 "the next node takes its place" "${contained[@]}" "$HAUL" put "$work/file" "$unix/host" \
  --only map --checksum

finish
