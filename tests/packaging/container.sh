#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The root of the container's image, run as the container file says: its user, command and health check. There is
# no container run-time here; chroot and namespaces stand for it.
#
#   container.sh BUILD SOURCE

set -u # ctest bounds the time
if [[ $1 != --inside ]]; then
  [[ $(id -u) == 0 ]] || { echo "skipped the container: only root may chroot" && exit 77; }
  unshare --mount --net true 2>/dev/null || { echo "skipped the container: no namespaces" && exit 77; }
  exec unshare --mount --propagation private --net "$0" --inside "$@" # mounts end with the namespace
fi
build=$2 source=$3
ip link set lo up
work=$(mktemp -d /var/tmp/haul-container.XXXXXX)
node=
trap '[[ -z $node ]] || kill -KILL "$node" 2>/dev/null; umount "$work/root/proc" 2>/dev/null; rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM
file=$source/packaging/container/Containerfile root=$work/root

# shellcheck source=tests/support/holds.sh
source "$source/tests/support/holds.sh"
# The words of an instruction's list, a line each.
words_of() { grep -oE "(^| )$1 \[.*\]" "$file" | tail -n 1 | grep -oE '"[^"]*"' | tr -d '"'; }

holds "it installs" cmake --install "$build" --component runtime --prefix "$work/usr"
holds "the root is collected" "$source/packaging/container/collect" "$work/usr" "$root"
mv "$root$work/usr" "$work/haul" && cp -r "$work/haul/." "$root/usr/" && rm -rf "${root:?}/var/tmp" # as with PREFIX=/usr
mkdir -p "$root/usr/lib" && /sbin/ldconfig -r "$root"
echo "        $(du -sm "$root" | cut -f 1) MiB, $(find "$root" -type f | wc -l) files"
holds "it has neither a shell nor another program" test "$(find "$root" -type f -path '*/bin/*')" = "$root/usr/bin/haul"
user=$(sed -n 's/^USER //p' "$file")
holds "its user is not root" grep -q "^haul:x:${user/:/:}:" "$root/etc/passwd"
mapfile -t start < <(words_of ENTRYPOINT && words_of CMD)
mapfile -t check < <(grep -o 'HEALTHCHECK.*' "$file" | grep -oE '"[^"]*"' | tr -d '"')
holds "the container file has a command and a health check" test "${#start[@]}" -ge 2 -a "${#check[@]}" -ge 2

echo hello >"$root/var/lib/haul/export/hello"
mount -t proc proc "$root/proc"
within() { chroot --userspec="$user" "$root" "$@"; }
# start_node COMMAND...: waits until it listens or ends.
start_node() {
  : >"$work/log"
  chroot --userspec="$user" "$root" "$@" >"$work/log" 2>&1 &
  node=$!
  for ((i = 0; i < 300; i++)); do
    grep -q '^listening' "$work/log" && break
    kill -0 "$node" 2>/dev/null || break
    sleep 0.1
  done
}
node_says() { grep "$1" "$work/log" || { cat "$work/log" && false; }; }
stop_node() {
  kill "$node" && wait "$node" 2>/dev/null
  node=
}

start_node "${start[@]}"
holds "the node listens" node_says '^listening'
holds "it runs as that user" test "$(stat -c %u:%g "/proc/$node")" = "$user"
holds "the health check passes" within "${check[@]}"
holds "a file is read" within /usr/bin/haul get localhost/export/hello -
holds "the module for etcd loads" grep -q "check that etcd listens there" \
  <(within /usr/bin/haul ls etcd://127.0.0.1:1/x 2>&1)
stop_node
holds "without the node the health check fails" test 1 = "$(within "${check[@]}" >/dev/null 2>&1; echo $?)"
start_node /usr/bin/haul serve --region w=host:6 --load w=/var/lib/haul/export/hello
holds "a node loads a file" node_says '^loaded w: 6 B '
holds "which is read" grep -x hello <(within /usr/bin/haul get localhost/w -)
stop_node
((failures == 0))
