#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Exported files: lists, reads, writes and rejected requests.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

mkdir -p "$work/tree/folder"
random_file "$work/tree/large" 20000003
: >"$work/tree/empty"
echo inside >"$work/tree/folder/with blank"
if ! "$HAUL" serve --listen tcp://127.0.0.1:0 --export "$work/nowhere" 2>&1 | grep -q "cannot export $work"; then
  skip_all "this haul was built without the module for files"
fi

section "invalid exports"
expect 1 "a missing folder" "$HAUL" serve --listen tcp://127.0.0.1:0 --export "$work/nowhere"
complains_briefly
expect 1 "a file" "$HAUL" serve --listen tcp://127.0.0.1:0 --export "$work/tree/large"
complains "give the folder that contains it"
expect 2 "two of a name" "$HAUL" serve --export a="$work" --export a="$work/tree"
expect 2 "no name" "$HAUL" serve --export =/tmp
expect 2 "a name with a blank" "$HAUL" serve --export "a b=$work"

serve --export "$work/tree" --export rw="$work/tree:rw" --region tree=host:1M --name depot

section "lists"
expect 0 "regions, as before" "$HAUL" ls "$unix"
says "^tree  *1.00 MiB"
expect 0 "exports" "$HAUL" ls "$tcp/" --json
is_json
holds_json "both are there" "[e['name'] + ' ' + e['rights'] for e in it['exports']] == ['rw read-write', 'tree read']"
expect 0 "a folder" "$HAUL" ls "$tcp/tree" --json
is_json
holds_json "all is there" "[(f['name'], f['type']) for f in it['files']] == [('empty', 'file'), ('folder', 'folder'), ('large', 'file')]"
expect 0 "a folder below" "$HAUL" ls "$unix/tree/folder"
says "^with blank"
expect 0 "haul:// is taken as well" "$HAUL" ls "haul://${tcp#tcp://}/tree/large"
says "^large"
expect 1 "no such export" "$HAUL" ls "$tcp/none"
complains_briefly
expect 1 "no such folder" "$HAUL" ls "$tcp/tree/none"
complains_briefly

section "names with invalid UTF-8 and control characters"
mkdir "$work/tree/odd"
: >"$work/tree/odd/"$'\xc2\x9b31mred' # a terminal's control sequence introducer, in UTF-8
: >"$work/tree/odd/"$'surrogate\xed\xa0\x80'
: >"$work/tree/odd/"$'overlong\xe0\x80\x80'
: >"$work/tree/odd/"$'beyond\xf4\x90\x80\x80'
: >"$work/tree/odd/"$'z\xc3\xa9ro'
expect 0 "are listed" "$HAUL" ls "$tcp/tree/odd"
says "^??31mred  "
says "^surrogate???  "
says $'^z\xc3\xa9ro  '
expect 0 "with JSON" "$HAUL" ls "$tcp/tree/odd" --json
is_json
holds_json "invalid characters are replaced" "[f['name'] for f in it['files']] == ['beyond' + 4 * '\ufffd',
  'overlong' + 3 * '\ufffd', 'surrogate' + 3 * '\ufffd', 'z\u00e9ro', '\u009b31mred']"
cp "$work/tree/large" "$work/"$'\e[31mred'
expect 0 "in a report of put" "$HAUL" put "$work/"$'\e[31mred' "$tcp/rw/odd/"$'\e[31m'
says "red (19.07 MiB) -> .*/rw/odd/?\[31m$"
expect 0 "in a report of get" "$HAUL" get "$tcp/rw/odd/"$'\e[31m' "$work/"$'\e[31mred'
says "^get .*/rw/odd/?\[31m (19.07 MiB) -> .*?\[31mred$"
expect 0 "in a report of a region" "$HAUL" get "$tcp/tree" "$work/"$'\e[31mred'
says "^get .* -> host, .*?\[31mred$"
rm "$work/tree/odd/"$'\e[31m'
holds "no control character is printed" eval '! LC_ALL=C grep -q "$(printf "\302\233")" "$work/out"'
rm -r "$work/tree/odd"

section "read"
for node in "$tcp" "$unix"; do
  rm -f "$work/copy"
  expect 0 "get" "$HAUL" get "$node/tree/large" "$work/copy" --json
  is_json
  holds "the bytes are the same" cmp "$work/tree/large" "$work/copy"
  holds_json "the report has the path" "it['path'] == 'map' and it['checksum_verified'] and it['bytes'] == 20000003"
  holds_json "and the CPU time" "it['cpu_seconds'] > 0"
  holds_json "and the reasons against others" "[p['name'] for p in it['paths'] if p['state'] != 'chosen' and not p['reason']] == []"
done
expect 0 "in words" env HAUL_PATHS=tcp "$HAUL" get "$tcp/tree/large" "$work/copy"
says "^  path map, "
says "^  copies: .*; CPU time "
says "^  source: "
expect 0 "a part" "$HAUL" get "$tcp/tree/large" "$work/copy" --offset 5000001 --length 9000000
holds "the bytes are the same" cmp "$work/copy" <(tail -c +5000002 "$work/tree/large" | head -c 9000000)
expect 0 "an empty file" "$HAUL" get "$tcp/tree/empty" "$work/none"
holds "is empty" test ! -s "$work/none" -a -e "$work/none"
expect 0 "a name with a blank" "$HAUL" get "$tcp/tree/folder/with blank" -
says "^inside$"
expect 0 "a region has precedence" "$HAUL" get "$tcp/tree" "$work/copy" --quiet
holds "it is the region" test "$(stat -c %s "$work/copy")" = 1048576
rm -f "$work/copy"
expect 1 "beyond the end" "$HAUL" get "$tcp/tree/large" "$work/copy" --offset 1G
complains_briefly
expect 1 "a folder" "$HAUL" get "$tcp/tree/folder/" "$work/copy"
complains "name one file"
expect 1 "out of the tree" "$HAUL" get "$tcp/tree/../tree/large" "$work/copy"
complains "remove '.' and '..'"
mkfifo "$work/tree/pipe"
expect 1 "a pipe" "$HAUL" get "$tcp/tree/pipe" "$work/copy"
complains "name a regular file"
expect 1 "over a pipe" "$HAUL" put "$work/tree/empty" "$tcp/rw/pipe"
complains "name a regular file"
rm "$work/tree/pipe"
expect 1 "below a file" "$HAUL" get "$tcp/tree/large/name" "$work/copy"
complains "component of the path is a file"
ln -s /etc/passwd "$work/tree/link"
expect 1 "a symlink" "$HAUL" get "$tcp/tree/link" "$work/copy"
complains "symlinks are not followed"
expect 1 "--only is for regions" "$HAUL" get "$tcp/tree/large" "$work/copy" --only tcp
complains_briefly
holds "no file is left" test ! -e "$work/copy"

section "written"
expect 0 "put" "$HAUL" put "$work/tree/large" "$tcp/rw/folder/new"
holds "the bytes are the same" cmp "$work/tree/large" "$work/tree/folder/new"
expect 0 "over an existing file" "$HAUL" put "$work/tree/empty" "$unix/rw/folder/new" --quiet
holds "is empty" test ! -s "$work/tree/folder/new"
chmod 0640 "$work/tree/folder/new"
exec 7<"$work/tree/folder/new"
expect 0 "and once more" "$HAUL" put "$work/tree/large" "$tcp/rw/folder/new"
says "^  path map, "
says "^  target: written from host buffers"
holds "its mode is kept" test "$(stat -c %a "$work/tree/folder/new")" = 640
holds "an open descriptor keeps the old file" test ! -s /dev/fd/7
exec 7<&-
section "put as a whole or not at all"

beside() { compgen -G "$work/tree/folder/.new.haul-*" >/dev/null; }
nothing_beside() { ! beside; }

# Starts a put that has some bytes and waits for more; sets $putter.
put_slowly() {
  mkfifo "$work/slow"
  exec 8<>"$work/slow"
  head -c 6000000 "$work/tree/large" >&8 &
  feeder=$!
  "$HAUL" put "$work/slow" "$tcp/rw/folder/new" >"$work/out" 2>"$work/err" &
  putter=$!
  holds "the new file is beside the old one" await beside
}

end_feeder() {
  kill "$feeder" 2>/dev/null
  wait "$feeder"
  exec 8>&-
  rm "$work/slow"
}

for signal in INT TERM KILL; do
  put_slowly
  kill -"$signal" "$putter"
  wait "$putter"
  status=$?
  end_feeder
  if [[ $signal != KILL ]]; then
    holds "it ends by SIG$signal" test "$status" = $((128 + $(kill -l $signal)))
    holds "and reports it" grep -q interrupted "$work/err"
  fi
  holds "the new file is removed" await nothing_beside
  holds "the old file is unchanged" cmp "$work/tree/large" "$work/tree/folder/new"
done
section "written, again"
expect 0 "of a pipe" bash -c "head -c 5000000 '$work/tree/large' | '$HAUL' put - '$tcp/rw/pipe'"
holds "the bytes are the same" cmp -n 5000000 "$work/tree/large" "$work/tree/pipe"
expect 1 "into an export without a file's name" "$HAUL" put "$work/tree/large" "$tcp/rw"
complains "^hint: .*; an exported file is NODE/EXPORT/PATH$"
expect 1 "into a read-only export" "$HAUL" put "$work/tree/large" "$tcp/tree/new"
complains "Read-only file system"
complains_briefly
holds "nothing was made" test ! -e "$work/tree/new"
expect 1 "in a folder that is not there" "$HAUL" put "$work/tree/large" "$tcp/rw/none/new"

section "the end"
stop "$server"
holds "SIGTERM is its normal end" test "$status" = 0

serve --region r=host:1M
limit=25 # seconds; less than the timeout of a file request
expect 1 "get from a node without exports" "$HAUL" get "$tcp/tree/large" "$work/copy"
complains "exports no files"
complains "^hint: start it with \`haul serve --export"
complains_briefly
expect 1 "put to a node without exports" "$HAUL" put "$work/tree/empty" "$tcp/tree/new"
complains "exports no files"
for path in / /tree /tree/folder; do
  expect 1 "list $path of a node without exports" "$HAUL" ls "$unix$path"
  complains "exports no files"
  complains_briefly
done
stop "$server"
serve --region r=host:1M --echo
expect 1 "a node that echoes is no file server" "$HAUL" ls "$tcp/"
complains "exports no files"
unset limit
stop "$server"
serve --region r=host:1M
freeze "$server"
expect 1 "a stopped node" "$HAUL" ls "$tcp/" --timeout 1
complains_briefly
kill -CONT "$server"
stop "$server"

section "for some alone"
for who in alice bob; do "$HAUL" key new "$work/$who" --name $who >"$work/out" 2>&1; done
(umask 077 && cat "$work/alice" "$work/bob" >"$work/both")
HAUL_KEY=$work/both serve --export open="$work/tree" --export his="$work/tree:rw" \
  --allow his=bob --export read="$work/tree:rw" --allow read=bob:ro --allow read=uid:4242
alice=(env HAUL_KEY="$work/alice" "$HAUL")
bob=(env HAUL_KEY="$work/bob" "$HAUL")
expect 0 "exports, for somebody else" "${alice[@]}" ls "$tcp/" --json
holds_json "what is for another is not listed" "[e['name'] for e in it['exports']] == ['open']"
expect 1 "get from another user's export" "${alice[@]}" get "$tcp/his/large" "$work/copy"
cp "$work/err" "$work/refused"
expect 1 "get from an unknown export" "${alice[@]}" get "$tcp/hat/large" "$work/copy"
holds "both errors are the same" cmp <(sed 's/his/hat/g' "$work/refused") "$work/err"
expect 0 "exports" "${bob[@]}" ls "$tcp/" --json
holds_json "all, with his rights" \
  "[e['name'] + ' ' + e['rights'] for e in it['exports']] == ['his read-write', 'open read', 'read read']"
expect 0 "put" "${bob[@]}" put "$work/tree/empty" "$tcp/his/new"
expect 0 "get" "${bob[@]}" get "$tcp/read/large" "$work/copy"
holds "the bytes are the same" cmp "$work/tree/large" "$work/copy"
expect 1 "put where he may read" "${bob[@]}" put "$work/tree/empty" "$tcp/read/other"
complains_briefly
stop "$server"

finish
