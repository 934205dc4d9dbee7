#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The checks of `haul doctor rdma` on a host with deficits; the remedies repair them.
# shellcheck source=tests/vm/lib.sh
. /haul/lib.sh

# finds STATE CHECK WORDS: the last output has the check in this state, with these words.
finds() {
  holds "$2 is $1: $3" grep -q "^$1  *$2  .*$3" "$work/out"
}

# offers CHECK COMMAND: the last output has this remedy for the check.
offers() {
  holds "for $1 it offers: $2" grep -qxF "  $1: $2" "$work/out"
}

doctor() { expect 0 "$1" "${@:2}" "$HAUL" doctor rdma; }

# apply_remedy CHECK: runs the command that the last output offers, as root, with the modules of /modules.
apply_remedy() {
  local command
  command=$(sed -n "s/^  $1: //p" "$work/out")
  # shellcheck disable=SC2317 # the remedies call these
  sudo() { "$@"; }
  # shellcheck disable=SC2317
  modprobe() { insmod /modules/*-"$1".ko; }
  holds "the remedy runs: $command" eval "$command"
  unset -f sudo modprobe
}

# as_user WHAT LIMIT: as a user without capabilities, with a memlock limit of LIMIT KiB.
as_user() {
  expect 0 "$1" su user -s /bin/bash -c "ulimit -l $2 && exec $HAUL doctor rdma"
}
echo 'user:x:1000:1000::/tmp:/bin/bash' >>/etc/passwd
echo 'user:x:1000:' >>/etc/group

section "a host as it should be"
doctor "all that can be had is there"
finds ok rdma.library "found libibverbs"
finds ok rdma.device "rxe0, rxe1"
finds ok rdma.port "2 ports up; rxe0/1"
finds ok rdma.gid "rxe0/1 is addressed by IPv4"
finds ok rdma.memlock "any amount"
finds limited rdma.dma-buf "takes no dma-buf"
finds ok rdma.peer-memory "no NVIDIA driver"
doctor "with a NIC that takes dma-bufs" env LD_PRELOAD=/haul/doubles/libdmabuf-nic.so
finds ok rdma.dma-buf "through its dma-buf"

section "a link that is down"
wire_down
doctor "both ends are down"
finds missing rdma.port "rxe[01]/1: its link is down; 0 of 2"
finds missing rdma.gid "rdma.port"
offers rdma.port "sudo ip link set dev eth0 up"
apply_remedy rdma.port
doctor "and up again"
finds ok rdma.port "2 ports up"
wire_up

section "an interface without an address"
ip address flush dev eth0
doctor "what the kernel makes of its hardware address is not enough"
finds limited rdma.gid "rxe0/1 is addressed by IPv6, link-local"
offers rdma.gid "sudo ip address add ADDRESS/24 dev eth0"
sed -i 's/ADDRESS/10.77.0.1/' "$work/out"
apply_remedy rdma.gid
holds "the GID comes" await gid_index rxe0 ${gid_v4}1
doctor "and that is all that was missing"
finds ok rdma.gid "rxe0/1 is addressed by IPv4"

section "little memory that may be locked"
as_user "a user with the limit of old systems" 64
finds missing rdma.memlock "64 KiB of memory"
offers rdma.memlock "echo \"\$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/haul.conf, \
then log in again (for a service: LimitMEMLOCK=infinity)"
as_user "with that of today's" 8192
finds limited rdma.memlock "8192 KiB of memory"
as_user "and without one" unlimited
finds ok rdma.memlock "any amount"

random_file /tmp/file 100000
chmod 644 /tmp/file
serve_on b --region a=host:8M
put="ulimit -l 64 && exec $HAUL put /tmp/file $v4_b/a"
expect 1 "then larger memory is not registered" on a su user -s /bin/bash -c "$put --only rdma"
complains "not rdma: .*locked memory"
expect 0 "and moves by another path" on a su user -s /bin/bash -c "$put"
says "path tcp"
stop $server
rm /tmp/file

section "a user without the right"
chmod 600 /dev/infiniband/uverbs*
as_user "the devices are root's" unlimited
finds missing rdma.device "rxe0: it cannot be opened: Permission denied"
offers rdma.device "sudo chmod a+rw /dev/infiniband/uverbs* (the package rdma-core makes it permanent)"
chmod 666 /dev/infiniband/uverbs*

section "a container without the devices"
mv /dev/infiniband /dev/infiniband.away
doctor "they are in the kernel alone"
finds missing rdma.device "the kernel has rxe0, but /dev/infiniband/uverbs0 does not exist"
offers rdma.device "start the container with --device=/dev/infiniband"
mv /dev/infiniband.away /dev/infiniband

section "packages"
mv /etc/libibverbs.d /etc/libibverbs.away
doctor "no driver for the device"
finds missing rdma.device "the kernel has rxe0, but libibverbs has no driver for it"
offers rdma.device "sudo apt-get install ibverbs-providers"
mv /etc/libibverbs.away /etc/libibverbs.d
mv /lib/libibverbs.so.1 /lib/away
doctor "no library"
finds missing rdma.library "libibverbs cannot be opened"
offers rdma.library "sudo apt-get install libibverbs1 ibverbs-providers"
mv /lib/away /lib/libibverbs.so.1

section "no module"
rmmod rdma_rxe
doctor "no device"
finds missing rdma.device "no RDMA device"
offers rdma.device "sudo modprobe rdma_rxe && sudo rdma link add rxe0 type rxe netdev eth0"
apply_remedy rdma.device
doctor "one again"
finds ok rdma.device "rxe0"
finds ok rdma.port "1 port up"

# As init made it, for the next script.
ip address flush dev eth0
ip address add 10.77.0.1/24 dev eth0
ip address add fd77::1/64 dev eth0 nodad
rdma link add rxe1 type rxe netdev eth1
add_routes 1 2
add_routes 2 1

finish
