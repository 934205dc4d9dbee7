#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The units under a real systemd, the first process of new namespaces over the installed system and a temporary
# file system: user, sandbox, readiness, sockets, kill and stop.
#
#   systemd.sh BUILD              installed in this system
#   systemd.sh --installed ROOT   installed in the system in ROOT, by its packages

set -u # ctest bounds the time
work=$(mktemp -d "${TMPDIR:-/tmp}/haul-systemd.XXXXXX")
group=haul-test-$$

# In each cgroup hierarchy.
groups() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts; }

clean_up() {
  local at i
  for at in $(groups); do
    for i in 1 2 3 4 5 6 7 8 9 10; do # its last processes may still be on their way out
      find "$at/$group" -depth -type d -exec rmdir {} + 2>/dev/null
      [[ -d $at/$group ]] || break
      sleep 0.2
    done
  done
  rm -rf "$work"
}

skip_all() {
  echo "skipped the units under systemd: $*"
  exit 77
}

# In the namespaces: mounts cover the system, and systemd replaces this process.
become_systemd() {
  local root=$work/layer/root
  mount --make-rprivate / && mkdir "$work/layer" && mount -t tmpfs layer "$work/layer" &&
    mkdir "$root" "$work/layer/upper" "$work/layer/work" &&
    mount -t overlay overlay -o "lowerdir=$system,upperdir=$work/layer/upper,workdir=$work/layer/work" "$root" &&
    { [[ $system != / ]] || cp -a "$work/stage/usr/." "$root/usr/"; } && mount -t proc proc "$root/proc" &&
    mount -t sysfs sysfs "$root/sys" &&
    mount --rbind /dev "$root/dev" && mount -t tmpfs -o mode=755 run "$root/run" &&
    mount -t tmpfs tmp "$root/tmp" && mkdir "$root/run/haul-test" &&
    mount --bind "$work/result" "$root/run/haul-test" && mount --make-rshared "$root" || exit
  cp "$0" "${0%/*}/../support/holds.sh" "$root/run/"
  cat >"$root/etc/systemd/system/haul-test.service" <<'UNIT'
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/bash /run/systemd.sh --under-systemd
StandardOutput=file:/run/haul-test/output
StandardError=file:/run/haul-test/output
UNIT
  ip link set lo up
  : >"$work/result/begun"
  container=other exec chroot "$root" /lib/systemd/systemd --unit=haul-test.service --log-target=null
}

property() { systemctl show -p "$1" --value haul.service; }
is() { [[ $(property "$1") == "$2" ]] || { systemctl status --no-pager -l haul.service; false; }; }
status_says() { grep -E "$1" "/proc/$(property MainPID)/status"; }
gets() { [[ $(timeout 20 haul get "$1/export/hello" -) == hello ]]; }
await() {
  local i
  for ((i = 0; i < 100; i++)); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  "$@"
}

check() {
  local pid work=/tmp
  # shellcheck source=tests/support/holds.sh
  source /run/holds.sh
  ldconfig
  holds "its user is made" systemd-sysusers /usr/lib/sysusers.d/haul.conf
  systemctl daemon-reload
  holds "the sockets are there before the node" systemctl start haul.socket
  holds "the node starts, and says that it is ready" systemctl start haul.service
  holds "it runs" is ActiveState active
  holds "as its own user" status_says "^Uid:[[:space:]]*$(id -u haul)[[:space:]]"
  holds "without capabilities" status_says '^CapBnd:[[:space:]]*0000000000000000$'
  holds "with no new privileges" status_says '^NoNewPrivs:[[:space:]]*1$'
  holds "under filters of calls" status_says '^Seccomp:[[:space:]]*2$'
  echo hello >/var/lib/haul/export/hello
  holds "what it exports is read over TCP" gets tcp://127.0.0.1:7420
  holds "and over its Unix socket" gets unix:///run/haul.sock
  pid=$(property MainPID)
  [[ $pid -gt 1 ]] && kill -KILL "$pid"
  holds "killed, it is started again" await is NRestarts 1
  holds "and serves" await gets tcp://127.0.0.1:7420
  holds "it is stopped" systemctl stop haul.service
  holds "and ended well" is Result success
  holds "who connects starts it" gets tcp://127.0.0.1:7420
  holds "then it runs again" is ActiveState active
  echo "$failures" >/run/haul-test/failures
}

if [[ ${1-} == --inside ]]; then
  work=$2 system=$3
  become_systemd
fi
if [[ ${1-} == --under-systemd ]]; then
  check
  systemctl --force --force poweroff >/dev/null 2>&1
  exit
fi

trap clean_up EXIT
trap 'exit 1' INT TERM
[[ $(id -u) == 0 ]] || skip_all "only root may make the namespaces"
system=/
[[ $1 != --installed ]] || system=$2
[[ -x $system/lib/systemd/systemd ]] || skip_all "it is not installed (apt-get install systemd)"
mkdir "$work/result"
if [[ $system == / ]]; then
  DESTDIR=$work/stage cmake --install "$1" --prefix /usr >"$work/out" 2>&1 || {
    cat "$work/out"
    exit 1
  }
fi
for at in $(groups); do
  mkdir "$at/$group" 2>"$work/out" || skip_all "no cgroup of its own: $(cat "$work/out")"
  # A new cpuset is empty and accepts no process.
  for file in cpuset.cpus cpuset.mems; do
    [[ ! -w $at/$group/$file ]] || cat "$at/$file" >"$at/$group/$file" 2>/dev/null || true
  done
done
# shellcheck disable=SC2016
timeout -s KILL 120 bash -c '
  for at in $1; do echo $$ >"$at/$2/cgroup.procs"; done
  exec unshare --mount --pid --fork --kill-child --uts --ipc --net --cgroup bash "$3" --inside "$4" "$5"
' - "$(groups)" "$group" "$0" "$work" "$system" >"$work/said" 2>&1
if [[ ! -s $work/result/output ]]; then
  skip_all "it does not start here: $(tail -n 1 "$work/said")$([[ -e $work/result/begun ]] || echo ' (no namespaces or overlay)')"
fi
cat "$work/result/output"
[[ $(cat "$work/result/failures" 2>/dev/null) == 0 ]]
