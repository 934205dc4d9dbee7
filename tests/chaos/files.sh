#!/bin/bash
# SPDX-License-Identifier: MIT
#
# A server of files that is killed, stopped and started again, on a disk that gets full, while files
# are put and got. What was reported to be there is there, whole; all else ends in time, and says so.
#
#   files.sh [SECONDS]      HAUL_TEST_SEED=… repeats what is drawn
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/../cli/lib.sh"

seconds=${1:-8}
RANDOM=${HAUL_TEST_SEED:-$$}
echo "HAUL_TEST_SEED=${HAUL_TEST_SEED:-$$} repeats this run"

[[ $(id -u) == 0 ]] || skip_all "a disk that gets full: only root may mount one"
mkdir "$work/disk"
mount -t tmpfs -o size=24m haul-chaos "$work/disk" 2>"$work/err" ||
  skip_all "a disk that gets full: $(cat "$work/err")"
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
  await 20 has_lines 2 "^listening on " "$work/serve" && return
  failed "haul serve"
  cat "$work/serve.err"
  exit 1
}

# Now over what the two share, now over the net.
address() {
  if ((RANDOM % 2)); then echo "$unix"; else sed -n 's/^listening on \(tcp:.*\)/\1/p' "$work/serve"; fi
}

harm() {
  case $((RANDOM % 6)) in
  0 | 1)
    sleep "0.0$((RANDOM % 10))"
    slay "$server"
    count[killed]=$((count[killed] + 1))
    start
    ;;
  2)
    kill -STOP "$server"
    sleep "0.$((RANDOM % 10))"
    kill -CONT "$server"
    count[stopped]=$((count[stopped] + 1))
    ;;
  esac
}

# try WHAT COMMAND…: while harm is done. Sets $status.
try() {
  local what=$1 client
  shift
  timeout 60 "$@" --timeout 10 >"$work/out" 2>"$work/err" &
  client=$!
  harm
  wait "$client"
  status=$?
  case $status in
  0) count[$what]=$((count[$what] + 1)) ;;
  1)
    count[refused]=$((count[refused] + 1))
    complains_of_something
    ;;
  *) failed "$*: exit status $status" ;;
  esac
}

complains_of_something() {
  awk '/^haul: ./ { told = 1 } /^hint: ./ { hint = 1 } END { exit !(told && hint) }' "$work/err" ||
    failed "an error without a word, or without a hint"
}

put() {
  local name=$1 source=${sources[RANDOM % ${#sources[@]}]}
  known[$name]=
  try put "$HAUL" put "$source" "$(address)/disk/$name"
  ((status == 0)) || return
  known[$name]=$source
  cmp "$source" "$work/disk/$name" >"$work/out" 2>&1 || failed "what was put is not there"
}

get() {
  local name=$1
  rm -f "$work/got"
  try got "$HAUL" get "$(address)/disk/$name" "$work/got"
  ((status == 0)) || return
  [[ -z ${known[$name]-} ]] || cmp "${known[$name]}" "$work/got" >"$work/out" 2>&1 ||
    failed "what was got is not what was put"
}

# The disk is full for the time of one put, which has to fail, unless it replaces as much.
fill_up() {
  local name=new.$RANDOM$RANDOM
  head -c 30M /dev/zero >"$work/disk/filler" 2>/dev/null
  timeout 60 "$HAUL" put "$work/source.5000001" "$unix/disk/$name" --timeout 10 >"$work/out" 2>"$work/err"
  status=$?
  [[ $status == 1 ]] || failed "put on a full disk: exit status $status"
  grep -q "No space left on device" "$work/err" || failed "a full disk is not told"
  complains_of_something
  rm -f "$work/disk/filler" "$work/disk/$name"
  count[full]=$((count[full] + 1))
}

start
section "for $seconds seconds"
for ((until = SECONDS + seconds; SECONDS < until; )); do
  name=file.$((RANDOM % 3))
  case $((RANDOM % 8)) in
  0 | 1 | 2) put "$name" ;;
  7) fill_up ;;
  *) [[ -n ${known[$name]+put} ]] && get "$name" ;;
  esac
done

section "after it"
for name in "${!known[@]}"; do
  [[ -z ${known[$name]} ]] || holds "$name is whole" cmp "${known[$name]}" "$work/disk/$name"
done
expect 0 "the server is well" "$HAUL" put "$work/source.300000" "$unix/disk/last"
holds "and so is what it took" cmp "$work/source.300000" "$work/disk/last"
stop "$server"
holds "it ends as it should" test "$status" = 0
echo "${count[put]} put, ${count[got]} got, ${count[refused]} ended with an error; the server was killed" \
  "${count[killed]} times and stopped ${count[stopped]} times, the disk was full ${count[full]} times"
holds "something was done" test "${count[put]}" -gt 0
finish
