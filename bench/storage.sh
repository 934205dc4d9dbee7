# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034,SC2154 # bench/run has what is not set or not used here
# The file benches of bench/run: a tree in $HAUL_BENCH_FOLDER (/var/tmp), `haul mount` over it, and fio on the
# same file. Rates depend on the disk, so only ratios are meaningful.

tree=

storage_table() {
  cat <<'TABLE'
usrbio-read|GB/s|higher|ring cold read 1M 32 2G|fio_run cold read 1M 32 2G|real|1 MiB, depth 32, read in order through the daemon; fio, io_uring, direct, the same; the page cache is empty
usrbio-read-warm|GB/s|higher|ring warm read 1M 32 2G|fio_run warm read 1M 32 2G|real|the same; the file is in the page cache
usrbio-read-huge|GB/s|higher|ring_huge read 1M 32 2G|fio_run cold read 1M 32 2G|real|as usrbio-read, with a /dev/shm that has huge pages (huge=advise), as memory of fio has
usrbio-read-small|GB/s|higher|ring cold randread 4K 128 512M|fio_run cold randread 4K 128 512M|real|4 KiB, depth 128, in random order; fio, io_uring, direct, the same; the page cache is empty
usrbio-read-small-warm|GB/s|higher|ring warm randread 4K 128 512M|fio_run warm randread 4K 128 512M|real|the same; the file is in the page cache
usrbio-fuse|GB/s|higher|ring cold randread 4K 128 256M|fio_mount cold randread 4K 128 64M|real|the same reads; fio, io_uring, the same depth through the FUSE mount, the page cache is empty
usrbio-fuse-warm|GB/s|higher|ring warm randread 4K 128 256M|fio_mount warm randread 4K 128 128M|real|the same; the file is in the page cache
usrbio-device|GB/s|higher|ring cold read 1M 32 2G device|ring cold read 1M 32 2G|itself|1 MiB, depth 32, into memory of the emulated accelerator; into memory of the host
usrbio-device-warm|GB/s|higher|ring warm read 1M 32 2G device|ring warm read 1M 32 2G|itself|the same; the file is in the page cache
fileservice|GB/s|higher|exported fileservice|exported plain read 4M|real|an exported file that is in the page cache, read by another process of this host, 4 MiB a request, checksums, by the path that haul chooses (map); pread() of the file, 4 MiB a call
fileservice-tcp|GB/s|higher|exported_tcp fileservice|iperf 1M|real|the same over tcp, as towards another host; iperf3 -l 1M
usrbio-write|GB/s|higher|ring cold write 1M 32 1G|fio_run cold write 1M 32 1G|real|1 MiB, depth 32, written in order; fio, io_uring, direct, the same
TABLE
  storage_matrix
}

# fio's matrix: a row for each size and depth, reads and writes.
storage_matrix() {
  local how block depth bytes
  for how in read write; do
    for block in 4K 64K 1M; do
      for depth in 1 32 128; do
        bytes=$(matrix_bytes $block $depth)
        echo "usrbio-${how:0:1}-${block,,}-$depth|GB/s|higher|ring cold rand$how $block $depth $bytes|fio_run" \
          "cold rand$how $block $depth $bytes|real|${how}s of $block, depth $depth, in random order; fio," \
          "io_uring, direct, registered buffers, the same"
      done
    done
  done
}

# As many as take some seconds.
matrix_bytes() { # BLOCK DEPTH
  case $1-$2 in
  4K-1) echo 32M ;;
  64K-1) echo 256M ;;
  4K-*) echo 256M ;;
  *) echo 1G ;;
  esac
}

lacks_for_storage() {
  if [ ! -e "$build/cmd/lib/haul/libhaul-storage.so" ]; then
    echo "haul mount was not built (sudo apt-get install liburing-dev libfuse3-dev)"
  elif [ ! -w /dev/fuse ]; then
    echo "/dev/fuse is not there for this user"
  elif ! command -v fio >/dev/null; then
    echo "the peer is missing (sudo apt-get install fio)"
  fi
}

# Creates a file of 1 GiB without holes and the mount, once.
mount_tree() {
  [ -z "$tree" ] || return 0
  tree=$(mktemp -d "${HAUL_BENCH_FOLDER:-/var/tmp}/haul-bench.XXXXXX")
  mkdir "$tree/files" "$tree/mount"
  trap unmount_tree EXIT
  dd if=/dev/urandom of="$tree/files/file" bs=1M count=1024 conv=fsync status=none
  "$build/cmd/haul/haul" mount --foreground "$tree/files" "$tree/mount" >"$tree/log" 2>&1 &
  HAUL_BENCH_DAEMON=$!
  export HAUL_BENCH_DAEMON
  for _ in $(seq 100); do
    [ ! -d "$tree/mount/3fs-virt/iovs" ] || return 0
    sleep 0.05
  done
  echo "run: haul mount did not start: $(cat "$tree/log")" >&2
  return 1
}

unmount_tree() {
  kill "$HAUL_BENCH_DAEMON" 2>/dev/null || true
  wait "$HAUL_BENCH_DAEMON" 2>/dev/null || true
  rm -rf "$tree"
}

# Puts the file into the page cache, or drops it.
temper() {
  if [ "$1" = warm ]; then
    cat "$tree/files/file" >/dev/null
  else
    dd if="$tree/files/file" iflag=nocache count=0 status=none 2>/dev/null
  fi
}

ring() { # cold|warm HOW BLOCK DEPTH BYTES [device]
  temper "$1"
  bench usrbio "$tree/mount/file" "$3" "$4" "$5" "$2" "${@:6}"
}

# In a mount namespace with a /dev/shm of its own, with a mount of its own.
ring_huge() { # HOW BLOCK DEPTH BYTES
  temper cold
  mkdir -p "$tree/huge"
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --mount bash -c '
    mount -t tmpfs -o huge=advise tmpfs /dev/shm
    "$1/cmd/haul/haul" mount --foreground "$2/files" "$2/huge" 2>>"$2/log" &
    export HAUL_BENCH_DAEMON=$!
    for _ in $(seq 100); do [ ! -d "$2/huge/3fs-virt/iovs" ] || break; sleep 0.05; done
    "$1/bench/usrbio" "$2/huge/file" "$4" "$5" "$6" "$3"
    status=$?
    kill $HAUL_BENCH_DAEMON
    wait $HAUL_BENCH_DAEMON
    exit $status' - "$build" "$tree" "$@"
}

# A bench on a warm file of 256 MiB, without a mount.
exported() { # BENCH ARGUMENTS...
  local folder status
  folder=$(mktemp -d "${HAUL_BENCH_FOLDER:-/var/tmp}/haul-bench.XXXXXX")
  dd if=/dev/urandom of="$folder/file" bs=1M count=256 conv=fsync status=none
  bench "$1" "${@:2}" "$folder/file" 2
  status=$?
  rm -rf "$folder"
  return $status
}
exported_tcp() { HAUL_PATHS=tcp exported "$@"; }

fio_run() { fio_on "$tree/files/file" 1 "$@"; }
# The daemon refuses O_DIRECT here, so that the kernel's threads read.
fio_mount() { fio_on "$tree/mount/file" 0 "$@"; }

# GB/s of the only direction, and CPU seconds a GB of fio alone; fields of its terse output, version 3.
fio_on() { # FILE DIRECT cold|warm HOW BLOCK DEPTH BYTES
  local file=$1 direct=$2
  shift 2
  temper "$1"
  fio --name=bench --filename="$file" --ioengine=io_uring --direct="$direct" --rw="$2" --bs="$3" \
    --iodepth="$4" --fixedbufs=1 --io_size="$5" --size=1G --minimal --terse-version=3 2>/dev/null |
    awk -F';' '{kib = $6 + $47; ms = $9 + $50
      gb = kib * 1024 / 1e9
      printf "%.4f %.3f\n", gb / ms * 1000, ($88 + $89) / 100 * ms / 1000 / gb}'
}
