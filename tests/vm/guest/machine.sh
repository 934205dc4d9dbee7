#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The properties of the machine that other tests rely on.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

state_is() {
  ibv_devinfo -d "$1" | grep -q "state:.*$2"
}

section "kernel"
holds "it is Linux 6.12" grep -q '^Linux version 6\.12\.' /proc/version
holds "there is udmabuf" test -c /dev/udmabuf
holds "there is the system's dma-heap" test -c /dev/dma_heap/system
holds "memory may be locked without limit" test "$(ulimit -l)" = unlimited

section "devices"
for host in a b; do
  [[ $host == a ]] && device=rxe0 number=1 || device=rxe1 number=2
  expect 0 "ibv_devinfo on $host" on $host ibv_devinfo -v -d $device
  says "state:.*PORT_ACTIVE"
  says "link_layer:.*Ethernet"
  says "active_mtu:.*4096"
  says "GID.*::ffff:10.77.0.$number, RoCE v2"
  says "GID.*fd77::$number, RoCE v2"
  holds "sysfs has its IPv4 GID" gid_index $device $gid_v4$number
  holds "sysfs has its IPv6 GID" gid_index $device $gid_v6$number
  holds "an interface on $host has the device's name for its own, and its address" on $host sh -c \
    "ip addr show dev \$(cat /sys/class/infiniband/$device/ports/1/gid_attrs/ndevs/0) | grep -q 'inet 10.77.0.$number/'"
done

section "wires"
for address in $v4_b $v6_b; do
  expect 0 "the hosts reach each other: $address" on a ping -c 1 -W 5 $address
done
expect 0 "and the first namespace's own" ping -c 1 -W 5 $v4_b
wire_down
holds "cutting the wire shows at the port" await state_is rxe0 PORT_DOWN
wire_up
holds "mending it, too" await state_is rxe0 PORT_ACTIVE
for device in rxe0 rxe1; do
  [[ $device == rxe0 ]] && number=1 || number=2
  holds "$device has its IPv4 GID again" await gid_index $device $gid_v4$number
  holds "$device has its IPv6 GID again" await gid_index $device $gid_v6$number
done

finish
