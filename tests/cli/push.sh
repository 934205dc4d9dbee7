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

finish
