# shellcheck shell=bash
# SPDX-License-Identifier: MIT
#
# The wires of the virtual machine: set-up, link state, impairment.

# configure_end NAME NUMBER [IP-OPTION...]: sets up a wire's end NAME with an address that ends with NUMBER.
configure_end() {
  local name=$1 number=$2
  shift 2
  ip "$@" link set "$name" addrgenmode none
  ip "$@" link set "$name" mtu 9000 # for Soft-RoCE's largest packets, 4096
  ip "$@" link set "$name" address "02:00:00:00:00:0$number"
  ip "$@" address add "10.77.0.$number/24" dev "$name"
  ip "$@" address add "fd77::$number/64" dev "$name" nodad
  ip "$@" link set "$name" up
}

# add_routes FROM TO: routes from the device with one number to the address of the other, in the first
# namespace.
add_routes() {
  local device=eth$(($1 - 1)) table=1$1 address="02:00:00:00:00:0$2"
  ip route replace "10.77.0.$2" dev $device src "10.77.0.$1" table $table
  ip -6 route replace "fd77::$2" dev $device src "fd77::$1" table $table
  ip neigh replace "10.77.0.$2" lladdr "$address" dev $device
  ip neigh replace "fd77::$2" lladdr "$address" dev $device
}

# own_addresses DEVICE…: accepts packets from addresses of this namespace.
own_addresses() {
  local device
  for device in "$@"; do
    echo 1 >"/proc/sys/net/ipv4/conf/$device/accept_local"
    echo 0 >"/proc/sys/net/ipv4/conf/$device/rp_filter"
    echo 1 >"/proc/sys/net/ipv4/conf/$device/arp_ignore"
    echo 1 >"/proc/sys/net/ipv6/conf/$device/keep_addr_on_down"
  done
}

# Both ends of Soft-RoCE's wire are in one namespace. Packets to local addresses use the wire only with
# rules before the kernel's first one.
route_over_wire() {
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
  add_routes 1 2
  add_routes 2 1
}

# The link state of Soft-RoCE's wire.
wire_down() { ip link set eth0 down; }
wire_up() {
  ip link set eth0 up
  add_routes 1 2
  add_routes 2 1
}

# impair OPTION…: applies netem's options to both directions of Soft-RoCE's wire, as `loss 1%`, `delay
# 5ms` or `rate 50mbit`.
impair() {
  tc qdisc replace dev eth0 root netem "$@"
  tc qdisc replace dev eth1 root netem "$@"
}
restore() {
  tc qdisc del dev eth0 root
  tc qdisc del dev eth1 root
}
