#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Puts and gets files while their server is killed, stopped and restarted, and its disk fills up.
# Files reported as put are complete; every other call ends in time, with an error and a hint.
#
#   files.sh [SECONDS]      HAUL_TEST_SEED=… repeats the random numbers
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/../cli/lib.sh"

seconds=${1:-8}
RANDOM=${HAUL_TEST_SEED:-$$}
echo "HAUL_TEST_SEED=${HAUL_TEST_SEED:-$$} repeats this run"

[[ $(id -u) == 0 ]] || skip_all "a full disk: only root may mount one"
mkdir "$work/disk"
mount -t tmpfs -o size=24m haul-chaos "$work/disk" 2>"$work/err" ||
  skip_all "a full disk: $(cat "$work/err")"
mounts+=("$work/disk")

for size in 1 4097 300000 1048576 5000001; do random_file "$work/source.$size" "$size"; done
sources=("$work"/source.*)

unix=unix://@haul-chaos-files-$$
declare -A known=() count=([put]=0 [got]=0 [refused]=0 [killed]=0 [stopped]=0 [full]=0)

start() {
  : >"$work/serve"
  "$HAUL" serve --listen "$unix" --listen tcp://127.0.0.1:0 --export "disk=$work/disk:rw" \
    >"$work/serve" 2>"$work/serve.err" &
  server=$!
  processes+=("$server")
  await has_lines 2 "^listening on " "$work/serve" && return
  failed "haul serve"
  cat "$work/serve.err"
  exit 1
}

# A Unix socket or TCP, at random.
address() {
  if ((RANDOM % 2)); then echo "$unix"; else sed -n 's/^listening on \(tcp:.*\)/\1/p' "$work/serve"; fi
}

inject_fault() {
  case $((RANDOM % 6)) in
  0 | 1)
    sleep "0.0$((RANDOM % 10))"
    slay "$server"
    count[killed]=$((count[killed] + 1))
    start
    ;;
  2)
    freeze "$server"
    sleep "0.$((RANDOM % 10))"
    kill -CONT "$server"
    count[stopped]=$((count[stopped] + 1))
    ;;
  esac
}

# try COUNTER COMMAND…: runs it while a fault is injected. Sets $status.
try() {
  local counter=$1 client
  shift
  timeout 60 "$@" --timeout 10 >"$work/out" 2>"$work/err" &
  client=$!
  inject_fault
  wait "$client"
  status=$?
  case $status in
  0) count[$counter]=$((count[$counter] + 1)) ;;
  1)
    count[refused]=$((count[refused] + 1))
    has_error_and_hint
    ;;
  *) failed "$*: exit status $status" ;;
  esac
}

has_error_and_hint() {
  awk '/^haul: ./ { error = 1 } /^hint: ./ { hint = 1 } END { exit !(error && hint) }' "$work/err" ||
    failed "no error message, or no hint"
}

put() {
  local name=$1 source=${sources[RANDOM % ${#sources[@]}]}
  known[$name]=
  try put "$HAUL" put "$source" "$(address)/disk/$name"
  ((status == 0)) || return
  known[$name]=$source
  cmp "$source" "$work/disk/$name" >"$work/out" 2>&1 || failed "the file on disk differs from its source"
}

get() {
  local name=$1
  rm -f "$work/got"
  try got "$HAUL" get "$(address)/disk/$name" "$work/got"
  ((status == 0)) || return
  [[ -z ${known[$name]-} ]] || cmp "${known[$name]}" "$work/got" >"$work/out" 2>&1 ||
    failed "the file got differs from the file put"
}

# Fills the disk during one put, which must fail.
fill_up() {
  local name=new.$RANDOM$RANDOM
  head -c 30M /dev/zero >"$work/disk/filler" 2>/dev/null
  timeout 60 "$HAUL" put "$work/source.5000001" "$unix/disk/$name" --timeout 10 >"$work/out" 2>"$work/err"
  status=$?
  [[ $status == 1 ]] || failed "put on a full disk: exit status $status"
  grep -q "No space left on device" "$work/err" || failed "the error does not name the full disk"
  has_error_and_hint
  rm -f "$work/disk/filler" "$work/disk/$name"
  count[full]=$((count[full] + 1))
}

start
# On a slow machine longer, at most a minute, until a file was put.
section "for $seconds seconds"
for ((until = SECONDS + seconds; SECONDS < until || (count[put] == 0 && SECONDS < until + 60); )); do
  name=file.$((RANDOM % 3))
  case $((RANDOM % 8)) in
  0 | 1 | 2) put "$name" ;;
  7) fill_up ;;
  *) [[ -n ${known[$name]+put} ]] && get "$name" ;;
  esac
done

section "at the end"
for name in "${!known[@]}"; do
  [[ -z ${known[$name]} ]] || holds "$name is complete" cmp "${known[$name]}" "$work/disk/$name"
done
expect 0 "the server accepts a put" "$HAUL" put "$work/source.300000" "$unix/disk/last"
holds "the file is complete" cmp "$work/source.300000" "$work/disk/last"
stop "$server"
holds "the server stops with status 0" test "$status" = 0
echo "${count[put]} put, ${count[got]} got, ${count[refused]} ended with an error; the server was killed" \
  "${count[killed]} times and stopped ${count[stopped]} times, the disk was full ${count[full]} times"
holds "files were put" test "${count[put]}" -gt 0
finish
