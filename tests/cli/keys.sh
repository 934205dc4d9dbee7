#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Keys: making them, nodes that have them, and regions for some alone.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

random_file "$work/file" 1000000

# serve_on ADDRESS OPTION…: a node there. Sets $server and $address.
serve_on() {
  : >"$work/serve"
  "$HAUL" serve --listen "$@" >"$work/serve" 2>"$work/serve.err" &
  server=$!
  processes+=("$server")
  await 10 grep -q "^listening on " "$work/serve" || failed "haul serve $*"
  address=$(sed -n 's/^listening on //p' "$work/serve" | head -n 1)
}

# lacks PATTERN: the last output has no such line.
lacks() { ! grep -q "$1" "$work/out"; }

end_server() {
  kill "$server"
  wait "$server" 2>/dev/null
}

section "making them"
expect 0 "a key" "$HAUL" key new "$work/a"
holds "nothing on standard output" test ! -s "$work/out"
complains "HAUL_KEY="
holds "for its owner alone" test "$(stat -c %a "$work/a")" = 600
expect 0 "another, with a name" "$HAUL" key new "$work/b" --name bob
expect 1 "over one that is there" "$HAUL" key new "$work/a"
complains_briefly
complains "already"
expect 1 "a name that is none" "$HAUL" key new "$work/c" --name "a b"
complains_briefly
holds "no file is left" test ! -e "$work/c"
expect 0 "a table" "$HAUL" key show "$work/b"
says "^bob  *[0-9a-f]\{16\}$"
holds "without the key" awk 'length($2) > 16 { exit 1 }' "$work/out"
(umask 077 && cat "$work/a" "$work/b" >"$work/both")
expect 0 "several" "$HAUL" key show "$work/both" --json
is_json
holds_json "both of them" '[k["name"] for k in it["keys"]] == ["haul", "bob"]'
cp "$work/a" "$work/open"
chmod 644 "$work/open"
expect 1 "one that others can read" "$HAUL" key show "$work/open"
complains "^hint: chmod 600"
expect 1 "no node opens with it" env HAUL_KEY="$work/open" "$HAUL" info
complains "^hint: chmod 600"

section "nodes with keys"
HAUL_KEY=$work/both serve_on tcp://127.0.0.1:0 --region shared=host:1M --region his=host:1M --allow his=bob
expect 0 "put with a key" env HAUL_KEY="$work/a" "$HAUL" put "$work/file" "$address/shared" --only tcp
says "TLS by the "
expect 1 "put without one" "$HAUL" put "$work/file" "$address/shared"
complains "key"
complains_briefly
expect 0 "ls with a key" env HAUL_KEY="$work/a" "$HAUL" ls "$address"
says "^shared "
holds "what is for another is not listed" lacks "^his "
expect 1 "put into it" env HAUL_KEY="$work/a" "$HAUL" put "$work/file" "$address/his"
complains "no region"
expect 0 "ls with the other's" env HAUL_KEY="$work/b" "$HAUL" ls "$address"
says "^his .*read-write"
expect 0 "put with his" env HAUL_KEY="$work/b" "$HAUL" put "$work/file" "$address/his" --only tcp
end_server

section "users of this host"
serve_on "unix://$work/sock" --region mine=host:1M --allow "mine=uid:$(id -u):ro" --region theirs=host:1M --allow theirs=uid:4242
expect 0 "ls" "$HAUL" ls "$address"
says "^mine .* read$"
holds "nothing of another's" lacks "^theirs "
expect 1 "what may be read cannot be written" "$HAUL" put "$work/file" "$address/mine"
complains_briefly
end_server

section "mistakes"
expect 2 "access to no region" "$HAUL" serve --listen "unix://$work/sock" --allow "x=bob"
expect 2 "to nobody" "$HAUL" serve --listen "unix://$work/sock" --region x=host:1M --allow "x="
expect 2 "to nobody, to be read" "$HAUL" serve --listen "unix://$work/sock" --region x=host:1M --allow "x=:ro"
expect 2 "neither new nor show" "$HAUL" key old "$work/a"
expect 2 "no file" "$HAUL" key new

finish
