#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Why a node ends, or a peer of it: haul serve says which signal ends it, and nothing else does; a peer that was
# stopped for longer than the liveness timeout causes a warning, and learns why.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

# ends SIGNAL STATUS PATTERN: the server ends so, and its standard error says why.
ends() {
  kill "-$1" "$server"
  wait "$server" 2>/dev/null
  holds "SIG$1 ends it with status $2" test $? = "$2"
  cp "$server_err" "$work/err"
  stderr_has "$3"
}

section "signals"
for signal in TERM INT HUP; do
  serve --region r=host:1M
  ends $signal 0 " info ended what=\"SIG$signal from process $$ ([a-z]*), user $UID\"$"
done
for signal in USR1 XCPU ALRM; do
  serve --region r=host:1M
  ends $signal $((128 + $(kill -l $signal))) "^haul: serve: ended by SIG$signal$"
done
trap '' HUP # as nohup does
serve --region r=host:1M
trap - HUP
kill -HUP "$server"
expect 0 "an ignored SIGHUP does not end it" "$HAUL" ls "$tcp"
ends TERM 0 " ended what=\"SIGTERM "

section "what does not end it"
# lives WHAT: the node at $listening lives; then ends it.
lives() {
  expect 0 "$1 does not end it" "$HAUL" ls "$listening"
}
mkfifo "$work/reader"
head -n 1 <"$work/reader" >"$work/first" &
reader=$!
"$HAUL" serve --listen tcp://127.0.0.1:0 --log info >"$work/reader" 2> >(exec true) <&- &
server=$!
processes+=("$server")
wait "$reader"
listening=$(sed -n 's/^listening on //p' "$work/first")
lives "the end of all that read its output"
stop "$server"
# shellcheck disable=SC2016
start_listener bash -c '"$0" serve --listen tcp://127.0.0.1:0 & echo $! >"$1"; sleep 0.1' "$HAUL" "$work/child"
wait "$server"
processes+=("$(cat "$work/child")")
lives "the end of its parent"
(ulimit -f 1000 && exec "$HAUL" serve --listen tcp://127.0.0.1:0 --export "e=$work:rw") \
  >"$work/limited" 2>"$work/limited.err" &
server=$!
processes+=("$server")
if await grep -q "^listening on " "$work/limited"; then
  listening=$(sed -n 's/^listening on //p' "$work/limited")
  random_file "$work/long" 3M
  expect 1 "a file beyond its limit" "$HAUL" put "$work/long" "$listening/e/copy"
  lives "a file beyond its limit"
  stop "$server"
else
  skipped "a file beyond the limit: $(cat "$work/limited.err")"
fi

section "a peer that is stopped"
HAUL_LIVENESS=1s serve --region r=host:4M --log info
"$HAUL" bench "$tcp" --only tcp --sizes 4K --duration 60 >"$work/out" 2>"$work/err" &
client=$!
processes+=("$client")
await grep -q " info connected " "$server_err"
sleep 0.5
freeze "$client"
holds "is dropped with a warning" await grep -q \
  ' warning silent peer=.* reason="the peer was silent for longer than the liveness timeout of 1 s"$' "$server_err"
kill -CONT "$client"
wait "$client"
holds "its command fails" test $? = 1
complains_briefly
complains "the peer dropped this process as silent\|the connection to the peer \(ended\|broke\)"
stop "$server"

section "a bench that needs no turn of its node"
HAUL_LIVENESS=2s serve --region r=host:4M --log info
expect 0 "copies over map for longer than the liveness timeout" \
  "$HAUL" bench "$tcp" --only map --sizes 4K --duration 8
holds "keep the connection" eval '! grep -q " silent " "$server_err"'
stop "$server"

finish
