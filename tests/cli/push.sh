#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul push and haul pull: a file reaches its receivers, from each other, too; a run that was interrupted goes on.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/file" 3000017

# start_push OPTIONS…: sets $push and $address. Its output goes to $work/push.
start_push() {
  rm -f "$work/push" "$work/push.err" # must not have the address of an earlier one
  "$HAUL" push "$work/file" --listen tcp://127.0.0.1:0 "$@" >"$work/push" 2>"$work/push.err" &
  push=$!
  processes+=("$push")
  await grep -q "^listening on " "$work/push" "$work/push.err" || failed "haul push starts"
  address=$(sed -n 's/^listening on //p' "$work/push" "$work/push.err" | head -n 1)
}
# ends STATUS WHAT: the push.
ends() {
  wait "$push"
  status=$?
  cp "$work/push" "$work/out"
  cp "$work/push.err" "$work/err"
  if [[ $status == "$1" ]]; then passed "$2"; else failed "$2: exit status $status"; fi
}

section "two receivers"
start_push --receivers 2 --json
expect 0 "the first" "$HAUL" pull "$address/file" "$work/one" --member one --json
is_json
holds_json "all came from the source" 'it["bytes"] == 3000017 and it["kept"] == 0 and it["from"][0]["source"]'
expect 0 "the second" "$HAUL" pull "$address/file" "$work/two" --member two
says "^received .*two: 2.86 MiB in "
says "^source  *map  *2.86 MiB  *0"
ends 0 "the source ends with the second"
is_json
holds_json "it lists both" 'sorted(m["name"] for m in it["receivers"]) == ["one", "two"] and {m["state"] for m in it["receivers"]} <= {"complete", "left"} and it["bytes"] == 3000017'
holds "the bytes are equal" cmp "$work/file" "$work/one"
holds "and so are the second's" cmp "$work/file" "$work/two"
holds "no other file is left" test ! -e "$work/one.part"

section "a member that stays serves the next"
start_push
"$HAUL" pull "$address/file" "$work/stays" --member stays --stay --quiet &
pull=$!
processes+=("$pull")
await test -e "$work/stays" || failed "it receives"
expect 0 "another one" "$HAUL" pull "$address/file" "$work/three" --json
holds_json "all came from the member" '[f["name"] for f in it["from"]] == ["stays"]'
stop "$pull"
holds "SIGTERM ends it" test "$status" = 0
head -c 1000000 "$work/file" >"$work/four.part"
expect 0 "a run that was interrupted goes on" "$HAUL" pull "$address/file" "$work/four" --json
holds_json "with the chunks that it had" '900000 < it["kept"] <= 1000000'
holds "the bytes are equal" cmp "$work/file" "$work/four"
expect 0 "a file that is there is not received again" "$HAUL" pull "$address/file" "$work/four" --json
holds_json "all was there" 'it["kept"] == it["bytes"]'
expect 1 "another name" "$HAUL" pull "$address/nothing" "$work/five"
complains_briefly
stop "$push"
holds "SIGTERM ends the source" test "$status" = 0
grep -q "^[0-9]* of [0-9]* receivers complete after " "$work/push" && passed "it lists its receivers" || failed "it lists its receivers"

section "a source that starts again"
place=unix://$work/place # a port might be taken meanwhile
start_push --listen "$place"
"$HAUL" pull "$place/file" "$work/follows" --follow --quiet &
pull=$!
processes+=("$pull")
await test -e "$work/follows" || failed "it receives"
slay "$push"
rm "$work/file" # must not change under a reader
random_file "$work/file" 64000000
start_push --listen "$place"
begun() { # it may have all by now, which holds, too
  cmp -n 4096 "$work/file" "$work/follows.part" || cmp "$work/file" "$work/follows"
}
await begun || failed "it receives the second"
slay "$push"
rm "$work/file" # must not change under a reader
random_file "$work/file" 2000003
start_push --listen "$place"
await cmp "$work/file" "$work/follows" && passed "--follow receives the next version" || failed "--follow receives the next version"
stop "$pull"
holds "SIGTERM ends it" test "$status" = 0

section "the name of the output"
pull() { # STATUS WHAT FILE
  expect "$1" "$2" "$HAUL" pull "$place/file" "$3" --quiet
}
has_mode() { # MODE FILE
  [[ $(stat -c %a "$2") == "$1" ]]
}
refused() { # WHAT FILE PATTERN
  pull 1 "$1" "$2"
  complains "$3"
  complains_briefly
}
: >"$work/old"
chmod 600 "$work/old"
pull 0 "a file that is there" "$work/old"
holds "keeps its mode" has_mode 600 "$work/old"
: >"$work/mode.part"
chmod 666 "$work/mode.part"
(umask 027 && "$HAUL" pull "$place/file" "$work/mode" --quiet)
holds "a new one has the mode of the umask" has_mode 640 "$work/mode"
mkdir "$work/folder"
ln -s folder/target "$work/link"
pull 0 "a link" "$work/link"
holds "stays one" test -L "$work/link"
holds "and its target has the bytes" cmp "$work/file" "$work/folder/target"
refused "a folder" "$work/folder" "Is a directory"
mkfifo "$work/fifo"
refused "a FIFO" "$work/fifo" "not a regular file"
if mknod "$work/device" c 1 3 2>"$work/err"; then # never /dev/null itself, which a bug would replace
  refused "a device" "$work/device" "not a regular file"
else
  skipped "a device: $(head -n 1 "$work/err")"
fi

section "a FILE.part that is not this command's"
: >"$work/victim"
ln -s victim "$work/a.part"
refused "a link" "$work/a" "not a regular file of this user"
ln "$work/victim" "$work/b.part"
refused "a file with another name" "$work/b" "not a regular file of this user"
mkfifo "$work/c.part"
refused "a FIFO" "$work/c" "not a regular file of this user"
holds "the other file is as before" test ! -s "$work/victim"
if ((EUID == 0)); then
  : >"$work/d.part"
  chown 1 "$work/d.part"
  refused "a file of another user" "$work/d" "not a regular file of this user"
else
  skipped "a file of another user: only root can create one"
fi
: >"$work/e.part"
expect 1 "a file that another pull writes" flock "$work/e.part" "$HAUL" pull "$place/file" "$work/e" --quiet
complains "another pull writes it"
complains_briefly
pull 0 "it is free again" "$work/e"
stop "$push"

section "a source that ends, hangs or changes its file"
# start_pull FILE: from a source that sends 1 MiB a second. Sets $pull; ends PULL once FILE.part has a chunk.
slowly=(env HAUL_PATHS=tcp HAUL_TCP_RATE=1M)
random_file "$work/file" 32000000 # it must not be complete before the source ends
start_pull() {
  "${slowly[@]}" "$HAUL" pull "$address/file" "$1" --json >"$1.out" 2>"$1.err" &
  pull=$!
  processes+=("$pull")
  # shellcheck disable=SC2016
  await bash -c 'cmp -n 65536 "$0" "$1"' "$work/file" "$1.part" || failed "it receives"
}
# pull_ends STATUS WHAT FILE
pull_ends() {
  wait "$pull"
  status=$?
  cp "$3.out" "$work/out"
  cp "$3.err" "$work/err"
  if [[ $status == "$1" ]]; then passed "$2"; else failed "$2: exit status $status"; fi
}
slow_push() {
  local HAUL_PATHS=tcp HAUL_TCP_RATE=1M
  export HAUL_PATHS HAUL_TCP_RATE
  start_push
}
slow_push
start_pull "$work/stopped"
stop "$pull"
holds "SIGTERM ends a receiver by that signal" test "$status" = 143
start_pull "$work/ends"
slay "$push"
pull_ends 1 "a source that ended ends its receiver" "$work/ends"
complains "the source has ended, and no known member has the"
complains "^hint: start haul push again"
complains_briefly
is_json
holds_json "the report says what is there" 'not it["complete"] and 0 < it["bytes"] < 32000000'
rm "$work/file"
random_file "$work/file" 16000000
slow_push
start_pull "$work/hangs"
kill -STOP "$push"
await grep -q "^haul: pull: no byte has come for .*; the source was passed over: " "$work/hangs.err" &&
  passed "a source that hangs is named" || failed "a source that hangs is named"
kill -CONT "$push"
pull_ends 0 "once it goes on all arrives" "$work/hangs"
holds_json "the report says so" 'it["complete"]'
holds "the bytes are equal" cmp "$work/file" "$work/hangs"
stop "$push"
start_push
printf changed | dd of="$work/file" bs=1 seek=1000000 conv=notrunc status=none
await grep -q "^haul: push: .*/file changed while it is sent" "$work/push.err" &&
  passed "the source tells that its file changed" || failed "the source tells that its file changed"
expect 1 "its receiver ends" "$HAUL" pull "$address/file" "$work/changes" --json
complains "the source sent wrong bytes .* times: did its file change?"
complains "^hint: start haul push again; its file must not change meanwhile"
complains_briefly
is_json
holds_json "the report counts them" 'not it["complete"] and it["corrupt"] > 1 and it["bytes"] > 15000000'
stop "$push"
start_push
cp "$work/file" "$work/new"
mv "$work/new" "$work/file"
await grep -q "^haul: push: .*/file was replaced" "$work/push.err" &&
  passed "the source tells that its file was replaced" || failed "the source tells that its file was replaced"
expect 0 "its receiver gets the one before" "$HAUL" pull "$address/file" "$work/before" --quiet
mkdir "$work/disk"
if mount -t tmpfs -o size=1m tmpfs "$work/disk" 2>"$work/err"; then
  mounts+=("$work/disk")
  expect 1 "a disk that is too small" "$HAUL" pull "$address/file" "$work/disk/file"
  complains "No space left on device"
  complains_briefly
  holds "no file without a chunk is left" test ! -e "$work/disk/file.part"
else
  skipped "a disk that is too small: $(cat "$work/err")"
fi
expect 2 "standard output" "$HAUL" pull "$address/file" -
complains "name a file: chunks come in any order"
"$HAUL" pull "$address/file" "$work/waits" --follow --quiet 2>"$work/waits.err" &
pull=$!
processes+=("$pull")
await test -e "$work/waits" || failed "it receives"
stop "$push"
await grep -q "^haul: pull: the source has not answered for .*: nobody listens there" "$work/waits.err" &&
  passed "--follow tells that its source is gone" || failed "--follow tells that its source is gone"
stop "$pull"

section "no bytes, and no source"
: >"$work/file"
start_push --receivers 1
expect 0 "an empty file" "$HAUL" pull "$address/file" "$work/empty" --quiet
ends 0 "the source ends"
holds "it is there" test -f "$work/empty" -a ! -s "$work/empty"
expect 1 "nobody listens" "$HAUL" pull 127.0.0.1:1/file "$work/six"
complains_briefly
expect 1 "no file" "$HAUL" push "$work/absent"
complains_briefly
expect 1 "a folder" "$HAUL" push "$work"
complains_briefly
expect 2 "a name with a slash" "$HAUL" push "$work/file" --name a/b
cp "$work/file" "$work/a file"
expect 2 "a file with a blank in its name" "$HAUL" push "$work/a file"
complains "set a --name: 'a file' has blanks or other bytes that no name has"
expect 2 "more receivers than there is room for" "$HAUL" push "$work/file" --await 5 --members 2
complains "^haul: push: --await 5 is more than the 2 --members"
expect 2 "more than by default" "$HAUL" push "$work/file" --await 1025

finish
