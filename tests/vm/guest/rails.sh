#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Two NICs a host: transfers use both, and a failure of one closes the path. Their wires may be in two subnets,
# in whichever order the hosts list them.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

length=$((64 << 20))
random_file "$work/file" $length

# Gives each host's second device an address in its namespace, like the first one's.
second_wire() {
  ip link add eth2 type veth peer name eth3
  configure_end eth2 3
  configure_end eth3 4
  ip rule add pref 13 iif lo to 10.77.0.4 lookup 13
  ip rule add pref 14 iif lo to 10.77.0.3 lookup 14
  ip -6 rule add pref 13 iif lo to fd77::4 lookup 13
  ip -6 rule add pref 14 iif lo to fd77::3 lookup 14
  add_routes 3 4
  add_routes 4 3
  own_addresses eth2 eth3
  on a ip address add 10.77.0.3/24 dev eth0
  on b ip address add 10.77.0.4/24 dev eth1
  rdma link add rxe2 type rxe netdev eth2
  rdma link add rxe3 type rxe netdev eth3
}

# Moves the second wire to a subnet of its own, and lets host b list its NIC there first.
other_subnet() {
  local number other device
  for number in 3 4; do
    other=$((7 - number)) device=eth$((number - 1))
    ip address add "10.78.0.$number/24" dev $device
    ip address delete "10.77.0.$number/24" dev $device
    ip rule add pref 1$((number + 2)) iif lo to "10.78.0.$other" lookup 1$number
    ip route replace "10.78.0.$other" dev $device src "10.78.0.$number" table 1$number
    ip neigh replace "10.78.0.$other" lladdr "02:00:00:00:00:0$other" dev $device
  done
  on a ip address add 10.78.0.3/24 dev eth0
  on b ip address add 10.78.0.4/24 dev eth1
  on a ip address delete 10.77.0.3/24 dev eth0
  on b ip address delete 10.77.0.4/24 dev eth1
  rdma link delete rxe3
  rdma link add rxa3 type rxe netdev eth3
}

first_subnet() {
  rdma link delete rxa3
  rdma link add rxe3 type rxe netdev eth3
  ip address add 10.77.0.3/24 dev eth2
  ip address add 10.77.0.4/24 dev eth3
  ip address delete 10.78.0.3/24 dev eth2
  ip address delete 10.78.0.4/24 dev eth3
  ip rule delete pref 15
  ip rule delete pref 16
  on a ip address delete 10.78.0.3/24 dev eth0
  on b ip address delete 10.78.0.4/24 dev eth1
  on a ip address add 10.77.0.3/24 dev eth0
  on b ip address add 10.77.0.4/24 dev eth1
  add_routes 3 4
  add_routes 4 3
}

no_second_wire() {
  rdma link delete rxe2
  rdma link delete rxe3
  ip link delete eth2
  on a ip address delete 10.77.0.3/24 dev eth0
  on b ip address delete 10.77.0.4/24 dev eth1
  ip rule delete pref 13
  ip rule delete pref 14
  ip -6 rule delete pref 13
  ip -6 rule delete pref 14
}

sent() { cat "/sys/class/net/$1/statistics/tx_bytes"; }
# carried DEVICE BEFORE: the device has sent at least a sixteenth of the file since then. The faster rail takes more.
carried() { (($(sent "$1") - $2 >= length / 16)); }

section "one NIC and one"
serve_on b --region memory=host:64M
expect 0 "explain" on a "$HAUL" explain host $v4_b/memory --size 1M
says "^rdma  *chosen .*rxe0, 1 rail"
stop $server

section "two and two"
second_wire
serve_on b --region memory=host:64M
expect 0 "explain" on a "$HAUL" explain host $v4_b/memory --size 1M
says "^rdma  *chosen .*, 2 rails"
first=$(sent eth0) other=$(sent eth2)
expect 0 "put" on a "$HAUL" put "$work/file" $v4_b/memory --only rdma --checksum
says "path rdma, .*, 2 rails"
holds "over the one" carried eth0 "$first"
holds "and the other" carried eth2 "$other"
first=$(sent eth1) other=$(sent eth3)
expect 0 "get" on a "$HAUL" get $v4_b/memory "$work/copy" --length $length --only rdma
says "path rdma, .*, 2 rails"
holds "over the one" carried eth1 "$first"
holds "and the other" carried eth3 "$other"
holds "the bytes are the same" cmp "$work/file" "$work/copy"

stop $server

section "two subnets, in another order"
other_subnet
expect 0 "info" on b "$HAUL" info
says "^rxa3/1  *rdma  *usable .*::ffff:10.78.0.4"
serve_on b --region memory=host:64M
expect 0 "explain" on a "$HAUL" explain host $v4_b/memory --size 1M
says "^rdma  *chosen .*rxe0, 2 rails"
holds "both pairs share a subnet" test -z "$(grep "by order" "$work/out")"
first=$(sent eth0) other=$(sent eth2)
expect 0 "put" on a "$HAUL" put "$work/file" $v4_b/memory --only rdma --checksum
says "path rdma, .*, 2 rails"
holds "over the one" carried eth0 "$first"
holds "and the other" carried eth2 "$other"
stop $server
first_subnet
serve_on b --region memory=host:64M

section "one of them loses its wire"
tc qdisc replace dev eth2 root netem rate 10mbit # its half of the file takes 27 s
begin "$work/file" $v4_b/memory
tc qdisc replace dev eth2 root netem loss 100%
end
restore
holds "the put goes on, and ends" test $status = 0
says "slices\? retried"
says "path tcp\|the path changed during the transfer: .* rdma, .* tcp" # tcp alone, if rdma completed no slice
tc qdisc delete dev eth2 root
expect 0 "it is compared over tcp" on a "$HAUL" get $v4_b/memory "$work/copy" --length $length --only tcp
holds "the bytes are the same" cmp "$work/file" "$work/copy"
stop $server

section "two and one"
rdma link delete rxe3
serve_on b --region memory=host:64M
expect 0 "put" on a "$HAUL" put "$work/file" $v4_b/memory --checksum
says "path rdma, .*, 1 rail,"
stop $server
rdma link add rxe3 type rxe netdev eth3
no_second_wire

finish
