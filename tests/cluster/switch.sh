# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: MIT
#
# Hosts on a switch: each is a network namespace, and so is the switch, which has a bridge. A test sources this
# file, calls `make_switch`, and `add_host` for each host. They go when it exits.

# shellcheck source=tests/cli/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"

tag=haul-$$
switch=$tag-switch

# Ends all processes in the hosts first, also clients that are not in the lists.
tear_down() {
  local one
  for one in "${networks[@]}"; do
    # shellcheck disable=SC2046 # a word each
    kill -KILL $(ip netns pids "$one") 2>/dev/null
  done
  clean_up 2>/dev/null
}
trap tear_down EXIT

host() { echo "$tag-$1"; }
address() { echo "10.88.0.$1"; }

make_namespace() {
  ip netns add "$1" 2>"$work/err" || skip_all "hosts on a switch: no network namespace: $(cat "$work/err")"
  networks+=("$1")
}

# make_switch BRIDGE…: the first is named switch, the one that hosts are plugged into.
make_switch() {
  local one
  [[ $(id -u) == 0 ]] || skip_all "hosts on a switch: only root may make network namespaces"
  command -v ip >/dev/null || skip_all "hosts on a switch: there is no ip(8)"
  mountpoint -q / || skip_all "hosts on a switch: ip-netns(8) wants / to be a mount, and in this chroot it is none"
  make_namespace "$switch"
  for one; do
    ip -n "$switch" link add name "$one" type bridge 2>"$work/err" ||
      skip_all "hosts on a switch: this kernel has no bridge: $(cat "$work/err")"
    ip -n "$switch" link set "$one" up
  done
}

# plug_in HOST: what both ends of its wire are and have. Its hardware address stays with the host, as
# others remember it.
plug_in() {
  ip -n "$switch" link set "port$1" master switch
  ip -n "$switch" link set "port$1" up
  ip -n "$(host "$1")" link set wire address "$(printf '02:00:00:00:01:%02x' "$1")"
  ip -n "$(host "$1")" address add "$(address "$1")/24" dev wire
  ip -n "$(host "$1")" link set wire up
}

# add_host NUMBER: 1 to 254.
add_host() {
  make_namespace "$(host "$1")"
  ip -n "$(host "$1")" link set lo up
  ip link add wire netns "$(host "$1")" type veth peer name "port$1" netns "$switch" 2>"$work/err" ||
    skip_all "hosts on a switch: no wire: $(cat "$work/err")"
  plug_in "$1"
}
