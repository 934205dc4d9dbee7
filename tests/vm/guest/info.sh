#!/bin/bash
# SPDX-License-Identifier: MIT
#
# haul info and haul doctor find the devices, and which of them are this host's.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

for host in a b; do
  [[ $host == a ]] && own=rxe0 other=rxe1 number=1 || own=rxe1 other=rxe0 number=2
  section "info on $host"
  expect 0 "info" on $host "$HAUL" info
  says "^$own/1  *rdma  *usable  *10 Gb/s  *-  *-  *::ffff:10.77.0.$number  *in software"
  says "^$other/1  *rdma  *closed .*its address belongs to another network namespace"
  says "^$own/1  *host  *-  *yes  *the only one$"
  says "^$own/1  *sim:0  *-  *yes  *the only one$"
  says "^$other/1  *host  *-  *no  *it is not usable$"
  says "^rdma  *\(ok\|limited\) "
  expect 0 "info --json" on $host "$HAUL" info --json
  says '"name": "rxe0/1"'
  says '"address": "::ffff:10.77.0.'$number'"'
done

section "without an IPv4 address"
ip -n a address del 10.77.0.1/24 dev eth0
expect 0 "info" on a "$HAUL" info
says "^rxe0/1  *rdma  *usable .* fd77::1 "
ip -n a address add 10.77.0.1/24 dev eth0

section "a wire that is cut"
wire_down
expect 0 "info" on a "$HAUL" info
says "^rxe0/1  *rdma  *closed .*its link is down"
expect 0 "doctor" on a "$HAUL" doctor
says "link is down\|rdma.port"
wire_up

finish
