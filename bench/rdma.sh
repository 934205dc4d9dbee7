# shellcheck shell=bash disable=SC2154 # build, runs, top and port are bench/run's
# SPDX-License-Identifier: MIT
#
# The rdma benches, for bench/run. They run together in one virtual machine of tests/vm, between its hosts
# `a` and `b`, whose devices are Soft-RoCE. Only the ratios are meaningful, as the CPU is mostly emulated.

# Preloaded before libibverbs, as Soft-RoCE does not support dma-bufs: emulates or rejects them.
double=/haul/doubles/libdmabuf-nic.so

# The GID of both programs: RoCE v2 with the IPv4 address. $1: number of the device, 0 or 1.
gid_of() {
  local port=/sys/class/infiniband/rxe$1/ports/1 file
  for file in "$port"/gids/*; do
    [[ $(cat "$file") == "0000:0000:0000:0000:0000:ffff:0a4d:000$(($1 + 1))" ]] || continue
    grep -q '^RoCE v2$' "$port/gid_attrs/types/${file##*/}" && echo "${file##*/}" && return
  done
}

# One process on each host.
between() {
  HAUL_BENCH_ON="on b" HAUL_BENCH_LISTEN=tcp://10.77.0.2:0 on a timeout 120 "$build/bench/$1" "${@:2}"
}

# With memory of emulated accelerators, registered with the NIC or staged.
direct() { LD_PRELOAD=$double between "$@"; }
staged() { HAUL_DMABUF_NIC=off LD_PRELOAD=$double between "$@"; }

# A field of perftest's result line. $1: the program, $2: the field, $3: its scale.
perftest() {
  local program=$1 field=$2 scale=$3 out server
  shift 3
  port=$((port + 1))
  out=$(mktemp)
  on b timeout 120 "$program" -d rxe1 -x "$(gid_of 1)" -F -p $port "$@" >/dev/null 2>&1 &
  server=$!
  for _ in $(seq 100); do
    on b netstat -ltn | grep -q ":$port " && break
    sleep 0.05
  done
  on a timeout 120 "$program" -d rxe0 -x "$(gid_of 0)" -F -p $port "$@" 10.77.0.2 >"$out" 2>&1 ||
    { cat "$out" >&2; kill "$server" 2>/dev/null; }
  wait "$server" || true
  awk -v f="$field" -v s="$scale" '$1 ~ /^[0-9]+$/ && NF >= 5 {printf "%.5f\n", $f * s}' "$out"
  rm -f "$out"
}

# Mean MiB/s as GB/s; and the mean of half the round trip.
perftest_bw() { perftest "$1" 4 0.001048576 "${@:2}"; }
perftest_lat() { perftest "$1" 6 1 "${@:2}"; }

# name | unit | higher or lower is better | ours | peer | description: as in bench/run. perftest has -t
# requests in flight, haul as many transfers.
rdma_table() {
  cat <<'TABLE'
rdma-write-64k|GB/s|higher|between transfer rdma 64K 128 3|perftest_bw ib_write_bw -s 65536 -t 128 -n 4000|emulated|64 KiB writes over Soft-RoCE, 128 in flight; ib_write_bw
rdma-write-1m|GB/s|higher|between transfer rdma 1M 128 3|perftest_bw ib_write_bw -s 1048576 -t 128 -n 256|emulated|1 MiB writes, 128 in flight; ib_write_bw
rdma-write-16m|GB/s|higher|between transfer rdma 16M 8 3|perftest_bw ib_write_bw -s 16777216 -t 8 -n 16|emulated|16 MiB writes, 8 in flight; ib_write_bw
rdma-read-1m|GB/s|higher|between transfer rdma 1M 128 3 read|perftest_bw ib_read_bw -s 1048576 -t 128 -n 256|emulated|1 MiB reads, 128 in flight; ib_read_bw
rdma-latency|us|lower|between latency rdma 4000|perftest_lat ib_write_lat -s 8 -n 4000|emulated|8 B ping-pong in memory, half the round trip; ib_write_lat
rdma-device|GB/s|higher|direct transfer rdma 1M 128 3 write sim:0|direct transfer rdma 1M 128 3 write host|itself|1 MiB between emulated accelerators, registered with the device; between host memories
rdma-staged|GB/s|higher|staged transfer rdma 1M 128 3 write sim:0|direct transfer rdma 1M 128 3 write sim:0|itself|the same with registration refused; registered
rdma-choice|of the best|higher|between choice host host 4M median|=1|constant|the best path's time over the chosen one's, rdma over Soft-RoCE or tcp, writes from 8 B to 4 MiB: the median over sizes
rdma-choice-worst|of the best|higher|between choice host host 4M worst|=1|constant|the same: the worst of these sizes
TABLE
}

# in_machine NAME...: runs them in the virtual machine. Results to stdout, the rest to stderr. Status 77
# without a machine.
in_machine() {
  local limit=$((60 + $# * runs * 40)) status line
  "$top/tests/vm/run" --build "$build" --timeout "$limit" \
    /haul/bench/run --here --build /haul --runs "$runs" "$@" |
    while IFS= read -r line; do
      case $line in
      rdma-* | "vm: emulated "*) echo "$line" ;;
      *) echo "$line" >&2 ;;
      esac
    done
  status=${PIPESTATUS[0]}
  return "$status"
}
