#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Error texts: what failed, why, and a hint that helps.
here=$(dirname "$0")
# shellcheck source=tests/cli/lib.sh
. "$here/lib.sh"

# hints TEXT: the hint of the last command is exactly this.
hints() {
  holds "its hint is '$1'" grep -qxF "hint: $1" "$work/err"
}

# names_once TEXT: the first line of the last error has the text once.
names_once() {
  holds "its error names $1 once" test "$(head -n 1 "$work/err" | grep -oF "$1" | wc -l)" = 1
}

section "no listener"
expect 1 "ls" "$HAUL" ls tcp://127.0.0.1:1
complains_briefly
names_once tcp://127.0.0.1:1
expect 1 "ls of a Unix socket" "$HAUL" ls "unix://$work/none"
names_once "unix://$work/none"
expect 1 "pingpong" "$HAUL" pingpong 127.0.0.1:1
complains_briefly
hints "start the server there: haul pingpong --server --listen ADDRESS"

section "an address to listen on"
unprivileged=()
((EUID == 0)) && unprivileged=(setpriv --bounding-set=-net_bind_service --inh-caps=-net_bind_service)
if (($(cat /proc/sys/net/ipv4/ip_unprivileged_port_start) > 80)); then
  expect 1 "serve on port 80" "${unprivileged[@]}" "$HAUL" serve --listen tcp://127.0.0.1:80
  complains "tcp://127.0.0.1:80: cannot be bound: Permission denied"
  names_once tcp://127.0.0.1:80
  hints "choose a port of 1024 or more, or grant CAP_NET_BIND_SERVICE"
else
  skipped "port 80 needs no privilege here"
fi
expect 1 "serve on a port without a host" "$HAUL" serve --listen 80
complains "cannot listen on '80': invalid address"
expect 1 "serve on another host's address" "$HAUL" serve --insecure --listen tcp://192.0.2.1:7420
hints "choose an address of this host: ip addr"
expect 1 "serve in a folder that does not exist" "$HAUL" serve --listen "unix://$work/none/socket"
hints "choose a path in a folder that this user can write to"

section "names that are no ASCII"
expect 1 "serve" "$HAUL" serve --listen tcp://127.0.0.1:0 --region wärme=host:64K
complains "cannot publish 'wärme': invalid name"
hints "pass a name of 1 to 255 printable ASCII characters without blanks"
expect 1 "serve with a node's name" "$HAUL" serve --listen tcp://127.0.0.1:0 --name wärme
complains "expected 1 to 63 printable ASCII characters without blanks"
expect 2 "serve with an export's name" "$HAUL" serve --listen tcp://127.0.0.1:0 --export "wä=$work"
complains "NAME has 1 to 63 printable ASCII bytes without blanks and '/'"
mkdir "$work/tree" && echo bytes >"$work/tree/wärme"
serve --export "tree=$work/tree"
expect 1 "get of a region" "$HAUL" get "$tcp/wärme" "$work/got"
complains "cannot find the region 'wärme': invalid name"
hints "pass a name of 1 to 255 printable ASCII characters without blanks"
expect 0 "the path of an exported file has any bytes" "$HAUL" get "$tcp/tree/wärme" "$work/got"
holds "and is there" cmp "$work/tree/wärme" "$work/got"

section "keys"
"$HAUL" key new "$work/key" --name server 2>"$work/err"
"$HAUL" key new "$work/other" --name client 2>"$work/err"
HAUL_KEY=$work/key serve --region r=host:64K
expect 1 "ls with the wrong key" env HAUL_KEY="$work/other" "$HAUL" ls "$tcp"
complains "the peer rejected this side's key"
complains_briefly
hints "compare both sides' files with \`haul key show FILE\`: both need key 'client'"
(umask 077 && head -c 4096 /dev/zero >"$work/binary" && head -c 1M /dev/zero >"$work/large")
expect 1 "a binary key file" env HAUL_KEY="$work/binary" "$HAUL" ls "$tcp"
complains "the key file is binary: it contains a zero byte"
hints "name a file that \`haul key new\` wrote"
expect 1 "a large key file" env HAUL_KEY="$work/large" "$HAUL" ls "$tcp"
complains "the key file is not a regular file of at most 524288 bytes"
names_once "$work/large"
expect 1 "a key in a folder that does not exist" "$HAUL" key new "$work/none/key"
hints "name a file in a folder that this user can write to, with space left"
expect 1 "no key file" env HAUL_KEY="$work/none" "$HAUL" ls "$tcp"
complains "No such file or directory"

section "configuration"
expect 1 "no configuration file" env HAUL_CONF="$work/none" "$HAUL" ls "$tcp"
complains "cannot read the configuration: No such file or directory"
complains_briefly

section "binary data and terminals"
export HAUL_KEY=$work/key
expect 1 "get to a terminal" script -qec "\"$HAUL\" get \"$tcp/r\" -" /dev/null
says "cannot write to standard output: it is a terminal"
says "add --force"
expect 0 "get to a terminal with --force" script -qec "\"$HAUL\" get \"$tcp/r\" - --force --quiet" /dev/null
holds "all bytes arrive" test "$(tr -d '\r\n' <"$work/out" | wc -c)" = 65536
expect 0 "get to a pipe" sh -c "\"$HAUL\" get \"$tcp/r\" - --quiet | wc -c"
says "^65536$"

finish
