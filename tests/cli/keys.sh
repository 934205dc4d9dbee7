#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Keys: haul key, nodes with keys, and restricted regions.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/file" 1000000

# lacks PATTERN: no line of the last output matches.
lacks() { ! grep -q "$1" "$work/out"; }

section "making keys"
expect 0 "a key" "$HAUL" key new "$work/a"
holds "nothing on standard output" test ! -s "$work/out"
stderr_has "HAUL_KEY="
holds "only its owner can read it" test "$(stat -c %a "$work/a")" = 600
expect 0 "a key with a name" "$HAUL" key new "$work/b" --name bob
expect 1 "a key over an existing file" "$HAUL" key new "$work/a"
complains_briefly
complains "already"
expect 2 "an invalid name" "$HAUL" key new "$work/c" --name "a b"
complains_briefly
holds "no file is left" test ! -e "$work/c"
expect 0 "show a file of one key" "$HAUL" key show "$work/b"
says "^bob  *[0-9a-f]\{16\}$"
holds "without the key" awk 'length($2) > 16 { exit 1 }' "$work/out"
(umask 077 && cat "$work/a" "$work/b" >"$work/both")
expect 0 "show a file of two keys" "$HAUL" key show "$work/both" --json
is_json
holds_json "both of them" '[k["name"] for k in it["keys"]] == ["haul", "bob"]'
cp "$work/a" "$work/open"
chmod 644 "$work/open"
expect 1 "a file that others can read" "$HAUL" key show "$work/open"
complains "^hint: chmod 600"
expect 1 "no node opens with it" env HAUL_KEY="$work/open" "$HAUL" info
complains "^hint: chmod 600"

section "nodes with keys"
HAUL_KEY=$work/both start_listener "$HAUL" serve --listen tcp://127.0.0.1:0 --region shared=host:1M --region bob-only=host:1M --allow bob-only=bob
expect 0 "put with a key" env HAUL_KEY="$work/a" "$HAUL" put "$work/file" "$listening/shared" --only tcp
says "TLS by the "
expect 1 "put without one" "$HAUL" put "$work/file" "$listening/shared"
complains "key"
complains_briefly
expect 0 "ls with a key" env HAUL_KEY="$work/a" "$HAUL" ls "$listening"
says "^shared "
holds "regions of others are not listed" lacks "^bob-only "
expect 1 "put into a region of another key" env HAUL_KEY="$work/a" "$HAUL" put "$work/file" "$listening/bob-only"
complains "no region"
expect 0 "ls with bob's key" env HAUL_KEY="$work/b" "$HAUL" ls "$listening"
says "^bob-only .*read-write"
expect 0 "put with bob's key" env HAUL_KEY="$work/b" "$HAUL" put "$work/file" "$listening/bob-only" --only tcp
stop "$server"

section "users of this host"
start_listener "$HAUL" serve --listen "unix://$work/sock" --region mine=host:1M --allow "mine=uid:$(id -u):ro" --region theirs=host:1M --allow theirs=uid:4242
expect 0 "ls" "$HAUL" ls "$listening"
says "^mine .* read$"
holds "regions of others are not listed" lacks "^theirs "
expect 1 "a read-only grant does not allow writing" "$HAUL" put "$work/file" "$listening/mine"
complains_briefly
stop "$server"
start_listener "$HAUL" serve --listen "unix://@haul-keys-$$" --region theirs=host:1M --allow theirs=uid:4242
expect 0 "ls of a node whose regions are for others" "$HAUL" ls "$listening"
stderr_has "^hint: the node publishes no region for this side; "
other=(setpriv --reuid=65534 --regid=65534 --clear-groups)
if ((EUID == 0)) && "${other[@]}" "$HAUL" --version >"$work/out" 2>"$work/err"; then
  expect 1 "ls by another user" "${other[@]}" "$HAUL" ls "$listening"
  complains "setting any_user admits others"
  stderr_has "^hint: see the log of the peer's node$"
else
  skipped "another user: this test runs as root, or that user may not run $HAUL"
fi
stop "$server"

section "invalid arguments"
expect 2 "access to no region" "$HAUL" serve --listen "unix://$work/sock" --allow "x=bob"
expect 2 "without a grantee" "$HAUL" serve --listen "unix://$work/sock" --region x=host:1M --allow "x="
expect 2 "read-only without a grantee" "$HAUL" serve --listen "unix://$work/sock" --region x=host:1M --allow "x=:ro"
expect 2 "an unknown action" "$HAUL" key old "$work/a"
expect 2 "no file" "$HAUL" key new

finish
