#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Files that a node exports: served, listed, read and written, and what is refused.
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

section "what cannot be exported"
expect 1 "a folder that is not there" "$HAUL" serve --listen tcp://127.0.0.1:0 --export "$work/nowhere"
complains_briefly
expect 1 "a file" "$HAUL" serve --listen tcp://127.0.0.1:0 --export "$work/tree/large"
complains "give the folder it lies in"
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

section "read"
for node in "$tcp" "$unix"; do
  rm -f "$work/copy"
  expect 0 "get" "$HAUL" get "$node/tree/large" "$work/copy" --json
  is_json
  holds "the bytes are the same" cmp "$work/tree/large" "$work/copy"
done
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
expect 1 "out of the tree" "$HAUL" get "$tcp/tree/../tree/large" "$work/copy"
ln -s /etc/passwd "$work/tree/link"
expect 1 "a symlink" "$HAUL" get "$tcp/tree/link" "$work/copy"
complains "symlinks are not followed"
expect 1 "--only is for regions" "$HAUL" get "$tcp/tree/large" "$work/copy" --only tcp
complains_briefly
holds "nothing was left" test ! -e "$work/copy"

section "written"
expect 0 "put" "$HAUL" put "$work/tree/large" "$tcp/rw/folder/new"
holds "the bytes are the same" cmp "$work/tree/large" "$work/tree/folder/new"
expect 0 "over what is there" "$HAUL" put "$work/tree/empty" "$unix/rw/folder/new" --quiet
holds "is empty" test ! -s "$work/tree/folder/new"
expect 0 "of a pipe" bash -c "head -c 5000000 '$work/tree/large' | '$HAUL' put - '$tcp/rw/pipe'"
holds "the bytes are the same" cmp -n 5000000 "$work/tree/large" "$work/tree/pipe"
expect 1 "where nobody may" "$HAUL" put "$work/tree/large" "$tcp/tree/new"
complains "Read-only file system"
complains_briefly
holds "nothing was made" test ! -e "$work/tree/new"
expect 1 "in a folder that is not there" "$HAUL" put "$work/tree/large" "$tcp/rw/none/new"

section "the end"
stop "$server"
holds "SIGTERM is its normal end" test "$status" = 0

serve --region r=host:1M
expect 1 "a node without exports" "$HAUL" get "$tcp/tree/large" "$work/copy" --timeout 1
complains "does not answer for files"
complains_briefly
finish
