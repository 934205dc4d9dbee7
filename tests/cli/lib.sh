# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: MIT
#
# Functions of the tests of the command. A test sources this file, calls `expect`, `holds` and `serve`,
# and ends with `finish`. $HAUL is the command under test.

set -u

# shellcheck source=tests/support/freeze.sh
. "$(dirname "${BASH_SOURCE[0]}")/../support/freeze.sh"

: "${HAUL:?set HAUL to the path of the haul command}"

work=$(mktemp -d "${TMPDIR:-/tmp}/haul-cli.XXXXXX")
failures=0
checks=0
skips=0
processes=() # of this test; no others are killed
mounts=()
networks=() # network namespaces, as ip-netns(8) names them

clean_up() {
  local one
  for one in "${processes[@]}"; do
    kill -KILL "$one" 2>/dev/null
    wait "$one" 2>/dev/null
  done
  for one in "${mounts[@]}"; do
    umount "$one"
  done
  for one in "${networks[@]}"; do
    ip netns delete "$one"
  done
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

passed() {
  checks=$((checks + 1))
  echo "ok      $*"
}

failed() {
  checks=$((checks + 1))
  failures=$((failures + 1))
  echo "FAILED  $*"
  sed 's/^/        | /' "$work/out" "$work/err" 2>/dev/null | head -n 20
}

skipped() {
  skips=$((skips + 1))
  echo "skipped $*"
}

# skip_all WHY: skips the whole test.
skip_all() {
  skipped "$*"
  exit 77
}

section() {
  echo "-- $*"
}

# expect STATUS WHAT COMMAND…: output goes to $work/out and $work/err. The limit is $limit seconds, by
# default 60.
expect() {
  local wanted=$1 what=$2 got
  shift 2
  timeout "${limit:-60}" "$@" >"$work/out" 2>"$work/err"
  got=$?
  if [[ $got == "$wanted" ]]; then
    passed "$what"
  else
    failed "$what: exit status $got, expected $wanted"
  fi
}

# holds WHAT COMMAND…: the command succeeds; its output is dropped.
holds() {
  local what=$1
  shift
  if "$@" >/dev/null 2>&1; then passed "$what"; else failed "$what"; fi
}

# says PATTERN: a line of the last standard output matches.
# stderr_has PATTERN: a line of the last standard error matches.
# complains PATTERN: the same, of a command that failed.
says() {
  holds "it says '$1'" grep -q -e "$1" "$work/out"
}

stderr_has() {
  holds "its standard error says '$1'" grep -q -e "$1" "$work/err"
}

complains() {
  holds "its error says '$1'" grep -q -e "$1" "$work/err"
}

# An error is one line, with at most one hint.
complains_briefly() {
  holds "the error is one line, with at most one hint" \
    awk 'NR == 1 && !/^haul: / { bad = 1 } NR == 2 && !/^hint: / { bad = 1 }
         END { exit bad || NR < 1 || NR > 2 }' "$work/err"
}

is_json() {
  holds "the output is JSON" python3 -m json.tool "$work/out"
}

# json EXPRESSION: evaluates it with the last output as `it`.
json() {
  python3 -c 'import json, sys
it = json.load(open(sys.argv[1]))
print(eval("(" + sys.argv[2] + ")"))' "$work/out" "$1"
}

# holds_json WHAT EXPRESSION
holds_json() {
  local truth
  truth=$(json "$2" 2>&1)
  if [[ $truth == True ]]; then passed "$1"; else failed "$1: $truth"; fi
}

# await COMMAND…: repeats the command until it succeeds, for a minute at most, which a busy machine may need.
await() {
  local until=$((SECONDS + 60))
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < until)) || return 1
    sleep 0.05
  done
}

# has_lines COUNT PATTERN FILE
has_lines() {
  [[ $(grep -c -e "$2" "$3") == "$1" ]]
}

# serve OPTIONS…: starts a node on a free port and on a Unix socket. Sets $server, its process, $tcp
# and $unix, its addresses, and $server_err, the file with its standard error.
serve() {
  local log
  log=$(mktemp "$work/serve.XXXXXX")
  unix="unix://$log.sock"
  server_err=$log.err
  "$HAUL" serve --listen tcp://127.0.0.1:0 --listen "$unix" "$@" >"$log" 2>"$log.err" &
  server=$!
  processes+=("$server")
  if ! await has_lines 2 "^listening on " "$log"; then
    echo "FAILED  haul serve $* does not start:"
    cat "$log" "$log.err"
    exit 1
  fi
  tcp=$(sed -n 's/^listening on \(tcp:.*\)/\1/p' "$log")
}

# stop PROCESS: by SIGTERM; sets $status.
stop() {
  kill -TERM "$1" 2>/dev/null
  wait "$1"
  status=$?
}

# start_listener COMMAND…: starts a command that prints "listening on ADDRESS", into $work/serve, with
# errors in $work/serve.err. Sets $server, its process, and $listening, its first address.
start_listener() {
  : >"$work/serve" # must not have the address of an earlier listener
  "$@" >"$work/serve" 2>"$work/serve.err" &
  server=$!
  processes+=("$server")
  await grep -q "^listening on " "$work/serve" || failed "$* does not start"
  listening=$(sed -n 's/^listening on //p' "$work/serve" | head -n 1)
}

# serve_hostile KIND: starts hostile_node.py of the folder $here. Sets $server and $tcp.
serve_hostile() {
  start_listener python3 "${here:?}/hostile_node.py" "$1"
  tcp=$listening
}

# slay PROCESS: by SIGKILL, without a message of the shell.
slay() {
  { kill -KILL "$1" && wait "$1"; } 2>/dev/null
}

random_file() {
  head -c "$2" /dev/urandom >"$1"
}

finish() {
  echo "$((checks - failures)) of $checks checks held, $skips skipped"
  ((failures == 0))
  exit
}
