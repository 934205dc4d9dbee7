# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# The wires of the virtual machine: how they are laid, cut and mended.

# plug NAME NUMBER [ip's options]: the end NAME of a wire; its address ends with NUMBER.
plug() {
  local name=$1 number=$2
  shift 2
  ip "$@" link set "$name" addrgenmode none
  ip "$@" link set "$name" mtu 9000 # Soft-RoCE's packets get their largest size, 4096
  ip "$@" link set "$name" address "02:00:00:00:00:0$number"
  ip "$@" address add "10.77.0.$number/24" dev "$name"
  ip "$@" address add "fd77::$number/64" dev "$name" nodad
  ip "$@" link set "$name" up
}

# lay FROM TO: from the device of one number to the other's address, in the first namespace.
lay() {
  local device=eth$(($1 - 1)) table=1$1 address="02:00:00:00:00:0$2"
  ip route replace "10.77.0.$2" dev $device src "10.77.0.$1" table $table
  ip -6 route replace "fd77::$2" dev $device src "fd77::$1" table $table
  ip neigh replace "10.77.0.$2" lladdr "$address" dev $device
  ip neigh replace "fd77::$2" lladdr "$address" dev $device
}

# own_addresses DEVICE…: takes packets from addresses of this namespace.
own_addresses() {
  local device
  for device in "$@"; do
    echo 1 >"/proc/sys/net/ipv4/conf/$device/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/$device/rp_filter"
    echo 1 >"/proc/sys/net/ipv4/conf/$device/arp_ignore"
    echo 1 >"/proc/sys/net/ipv6/conf/$device/keep_addr_on_down"
  done
}

# Both ends of the wire of Soft-RoCE are in one namespace, where packets to one's own addresses take
# no wire, unless rules before the usual first one send them there.
use_wire() {
  local version
  for version in -4 -6; do
    ip $version rule add pref 100 lookup local
    ip $version rule del pref 0
  done
  ip rule add pref 11 iif lo to 10.77.0.2 lookup 11
  ip rule add pref 12 iif lo to 10.77.0.1 lookup 12
  ip -6 rule add pref 11 iif lo to fd77::2 lookup 11
  ip -6 rule add pref 12 iif lo to fd77::1 lookup 12
  own_addresses all eth0 eth1
  lay 1 2
  lay 2 1
}

# Soft-RoCE's wire: its ports go down, and come back.
cut_wire() { ip link set eth0 down; }
mend_wire() {
  ip link set eth0 up
  lay 1 2
  lay 2 1
}

# spoil OPTION…: of netem, to both directions of Soft-RoCE's wire: `loss 1%`, `delay 5ms`, `rate
# 50mbit`, `loss 100%`.
spoil() {
  tc qdisc replace dev eth0 root netem "$@"
  tc qdisc replace dev eth1 root netem "$@"
}
heal() {
  tc qdisc del dev eth0 root
  tc qdisc del dev eth1 root
}
