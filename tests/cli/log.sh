#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul serve --log and --log-format.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

# logs WHAT PATTERN: a line matches within 10 seconds.
logs() {
  if await grep -q -E -e "$2" "$log"; then
    passed "$1"
  else
    cp "$log" "$work/out"
    failed "$1: no line like $2"
  fi
}

# lines_hold WHAT EXPRESSION: it is true for the JSON lines of the log, as `them`.
lines_hold() {
  local truth
  truth=$(python3 -c 'import json, sys
them = [json.loads(line) for line in open(sys.argv[1])]
print(eval("(" + sys.argv[2] + ")"))' "$log" "$2" 2>&1)
  if [[ $truth == True ]]; then passed "$1"; else failed "$1: $truth"; fi
}

# tells_pages WHAT 0|1 OPTION: with a /dev/shm that is mounted so, a mount logs that hint so often.
tells_pages() {
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --mount bash -c 'mount -t tmpfs -o "$1" tmpfs /dev/shm
    exec "$HAUL" mount --foreground "$2/source" "$2/point"' - "$3" "$work" 2>"$work/pages" &
  server=$!
  processes+=("$server")
  await grep -q " is mounted at " "$work/pages"
  stop "$server"
  holds "$1" test "$(grep -c "huge=advise /dev/shm" "$work/pages")" = "$2"
}

time='^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z'
"$HAUL" key new "$work/key" 2>/dev/null
"$HAUL" key new "$work/other" 2>/dev/null

section "rejected peers"
HAUL_KEY=$work/key serve --region target=host:1M
log=$server_err
expect 1 "another key" env HAUL_KEY="$work/other" "$HAUL" ls "$tcp"
logs "is logged with address and reason" \
  "$time warning refused address=127\.0\.0\.1:[0-9]+ code=not-authenticated reason=\"it did not prove who it is: .*\"$"
expect 1 "no key" "$HAUL" ls "$tcp"
logs "is logged, too" "$time warning refused address=127\.0\.0\.1:[0-9]+ code=not-authenticated reason=\"the connecting node has no key"
expect 0 "the right one" env HAUL_KEY="$work/key" "$HAUL" ls "$tcp"
expect 0 "over the Unix socket" "$HAUL" ls "$unix"
holds "no other warnings" test "$(grep -c -v " refused " "$log")" = 0

section "limit of equal lines"
port=${tcp##*:}
python3 - "$port" <<'END'
import socket, sys
for i in range(200):
    one = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    one.sendall(b"GET / HTTP/1.1\r\n\r\n")
    one.recv(512)
    one.close()
END
logs "the number of suppressed lines" 'warning refused reason="[0-9]+ more like this" more=[0-9]+$'
holds "few lines for many events" test "$(grep -c " refused " "$log")" -lt 100
stop "$server"

section "connects and disconnects"
serve --region target=host:1M --log info
log=$server_err
HAUL_NAME='x"level=error\evil' expect 0 "a name like a field" "$HAUL" ls "$tcp"
logs "is quoted" 'info connected peer="x\\"level=error\\\\evil" address=127\.0\.0\.1:[0-9]+$'
logs "also at the disconnect" 'info left peer="x\\"level=error\\\\evil" address=127\.0\.0\.1:[0-9]+ code=peer-gone reason='
expect 0 "over the Unix socket" "$HAUL" ls "$unix"
logs "has the user" "info connected peer=[^ ]* identity=uid:$(id -u) address=unix$"
stop "$server"

section "as JSON"
HAUL_KEY=$work/key serve --log debug --log-format json --name logger
log=$server_err
HAUL_NAME='x"},{"y' HAUL_KEY=$work/key expect 0 "a name like JSON" "$HAUL" ls "$tcp"
expect 1 "no key" "$HAUL" ls "$tcp"
logs "is logged" '"event": "refused"'
logs "and the disconnect" '"event": "left"'
stop "$server"
lines_hold "each line has the common members" \
  "all({'time', 'level', 'event', 'text', 'node'} <= set(one) and one['node'] in ('logger', '') for one in them)"
lines_hold "the last one is the end" "them[-1]['event'] == 'ended' and 'SIGTERM' in them[-1]['what']"
lines_hold "the name is unchanged" \
  "any(one.get('peer') == 'x\"},{\"y' and one['event'] == 'connected' for one in them)"
lines_hold "a rejection has a reason" \
  "any(one['event'] == 'refused' and one['level'] == 'warning' and one['reason'] for one in them)"

section "levels"
HAUL_KEY=$work/key serve --log error
log=$server_err
expect 1 "no key" "$HAUL" ls "$tcp"
stop "$server"
holds "warnings are not logged" has_lines 0 " warning " "$log"
holds "but the end is" has_lines 1 " info ended what=\"SIGTERM " "$log"

section "without a reader"
mkfifo "$work/pipe"
head -n 1 "$work/pipe" >"$work/first" &
reader=$!
processes+=("$reader")
HAUL_KEY=$work/key start_listener sh -c 'exec "$1" serve --listen tcp://127.0.0.1:0 2>"$2"' - "$HAUL" "$work/pipe"
tcp=$listening
expect 1 "no key" "$HAUL" ls "$tcp"
wait "$reader"
holds "the reader ends" grep -q " refused " "$work/first"
expect 1 "no key" "$HAUL" ls "$tcp"
expect 0 "the node continues" env HAUL_KEY="$work/key" "$HAUL" ls "$tcp"
stop "$server"
holds "and ends with status 0" test "$status" = 0

section "to the journal"
: >"$work/journal"
stream=$(stat -c '%d:%i' "$work/journal")
HAUL_KEY=$work/key JOURNAL_STREAM=$stream \
  start_listener sh -c 'exec "$1" serve --listen tcp://127.0.0.1:0 2>"$2"' - "$HAUL" "$work/journal"
tcp=$listening
log=$work/journal
expect 1 "no key" "$HAUL" ls "$tcp"
logs "lines begin with their priority" "^<4>[0-9TZ:.-]* warning refused "
stop "$server"
HAUL_KEY=$work/key JOURNAL_STREAM=1:1 serve
log=$server_err
expect 1 "no key" "$HAUL" ls "$tcp"
logs "not without a journal" "$time warning refused "
stop "$server"

section "of a mount"
mkdir "$work/source" "$work/point"
"$HAUL" mount "$work/source" "$work/point" --foreground --log-format json 2>"$work/mount" &
server=$!
processes+=("$server")
if await grep -q " is mounted at " "$work/mount"; then
  stop "$server"
  log=$work/mount
  lines_hold "each line is an object" \
    "all({'time', 'level', 'event', 'what'} <= set(one) and one['event'] == 'mount' for one in them)"
  holds "the end is logged" grep -q " is no longer mounted at " "$work/mount"
  if unshare --mount mount -t tmpfs -o huge=advise tmpfs /dev/shm 2>"$work/unshare"; then
    tells_pages "small pages of buffers are told" 1 size=50%
    tells_pages "but not huge ones" 0 huge=advise
  else
    skipped "pages of buffers: $(head -n 1 "$work/unshare")"
  fi
else
  skipped "the log of a mount: $(head -n 1 "$work/mount")"
fi

section "wrong usage"
expect 2 "an invalid level" "$HAUL" serve --log loud
complains "invalid --log 'loud'"
expect 2 "an invalid format" "$HAUL" serve --log-format xml
complains "invalid --log-format 'xml'"
expect 2 "an invalid level of a mount" "$HAUL" mount "$work" "$work" --log loud

finish
