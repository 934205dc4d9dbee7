#!/bin/bash
# SPDX-License-Identifier: MIT
#
# put and get over every path, to every place.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/odd" 20000003
random_file "$work/small" 1
serve --region host=host:64M --region sim=sim:0:64M --file file="$work/odd":ro --name depot

for place in host sim; do
  for path in tcp map; do
    for file in odd small; do
      section "$file file to $place over $path"
      size=$(stat -c %s "$work/$file")
      expect 0 "put" "$HAUL" put "$work/$file" "$unix/$place" --only "$path" --checksum
      says "path $path"
      says "checksum verified"
      rm -f "$work/copy"
      expect 0 "get" "$HAUL" get "$unix/$place" "$work/copy" --only "$path" --checksum --length "$size"
      says "path $path"
      holds "the bytes are the same" cmp "$work/$file" "$work/copy"
    done
  done
done

section "without --only"
expect 0 "put" "$HAUL" put "$work/odd" "$tcp/host" --json
is_json
holds_json "the report has bytes, path and copies" \
  'it["bytes"] == 20000003 and it["path"] in ("map", "tcp") and set(it["copies"]) == {"cpu", "kernel", "dma"}'
holds_json "and a reason for each path not taken" \
  'all(p["reason"] for p in it["paths"] if p["state"] != "chosen")'
holds_json "the file was mapped, not read" 'it["source"] == "mapped"'
expect 0 "get of a published file" "$HAUL" get "${tcp#tcp://}/file" "$work/copy"
holds "the bytes are the same" cmp "$work/odd" "$work/copy"

section "pipes"
expect 0 "put from a pipe" sh -c "cat '$work/odd' | '$HAUL' put - $tcp/host --json"
holds_json "it was kept until its end" 'it["source"] == "kept" and it["bytes"] == 20000003'
expect 0 "put from a pipe as it arrives" \
  sh -c "cat '$work/odd' | '$HAUL' put - $tcp/host --partial --json"
holds_json "it was read" 'it["source"] == "read" and it["bytes"] == 20000003'
"$HAUL" get "$tcp/host" - --length 20000003 2>"$work/err" | cmp -s - "$work/odd"
holds "get to a pipe writes only the bytes" test "${PIPESTATUS[1]}" = 0
stderr_has "^get "
expect 0 "put from an open file" sh -c "'$HAUL' put - $tcp/host <'$work/small'"

section "parts"
expect 0 "put at an offset" "$HAUL" put "$work/odd" "$tcp/host" --offset 12345
expect 0 "get of a part" "$HAUL" get "$tcp/host" "$work/part" --offset 12346 --length 5M
holds "it is that part" cmp "$work/part" <(tail -c +2 "$work/odd" | head -c 5M)
expect 0 "put of the rest of an open file" sh -c \
  "{ head -c 7 >/dev/null; '$HAUL' put - $tcp/host; } <'$work/odd'"
# head may have read ahead; put must start at the offset of the file.

section "files"
echo old >"$work/existing"
chmod 640 "$work/existing"
ln -s existing "$work/link"
expect 0 "get through a link to a file that exists" "$HAUL" get "$tcp/file" "$work/link"
holds "the file is replaced" cmp "$work/odd" "$work/existing"
holds "the link is still a link" test -L "$work/link"
holds "the mode is kept" test "$(stat -c %a "$work/existing")" = 640
ln -s folder/next "$work/dangling"
mkdir "$work/folder"
ln -s ../later "$work/folder/next"
expect 0 "get through links to a file that does not exist" "$HAUL" get "$tcp/file" "$work/dangling"
holds "the file is there" cmp "$work/odd" "$work/later"
holds "the links are still links" test -L "$work/dangling" -a -L "$work/folder/next"
(umask 027 && "$HAUL" get "$tcp/file" "$work/fresh" --quiet)
holds "a new file's mode follows the umask" test "$(stat -c %a "$work/fresh")" = 640

section "zero copy"
expect 0 "put over map" "$HAUL" put "$work/odd" "$unix/host" --only map \
  --require-zero-copy
expect 1 "put over tcp to a device needs a buffer" "$HAUL" put "$work/odd" "$unix/sim" \
  --only tcp --require-zero-copy
complains_briefly

finish
