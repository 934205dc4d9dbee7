#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The Debian packages of a release: built in a new system, installed by apt alone in another one, with a first
# transfer, the tests of the packages and the units under a booted systemd. Root only; downloads packages.
#
#   debian.sh SOURCE SUITE
#
# HAUL_SYSTEMS names a folder that keeps the new systems for the next run.

set -u # ctest bounds the time
if [[ ${1-} != --inside ]]; then
  [[ $(id -u) == 0 ]] || { echo "skipped the packages: only root may make a system" && exit 77; }
  unshare --mount --pid true 2>/dev/null || { echo "skipped the packages: no namespaces" && exit 77; }
  # Mounts and processes end with the namespaces.
  exec unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
source=$2 suite=$3
exec </dev/null
work=$(mktemp -d /var/tmp/haul-debian.XXXXXX)
trap 'umount -R "$work"/*/{proc,sys,dev} 2>/dev/null; mountpoint -q "$work/fresh/dev" || rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' INT TERM

skip() {
  echo "skipped the packages of $suite: $*"
  exit 77
}

# shellcheck source=tests/support/holds.sh
source "$source/tests/support/holds.sh"

# The archive of this system.
archive() {
  sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' /etc/apt/sources.list.d/debian.sources \
    /etc/apt/sources.list 2>/dev/null | head -n 1
}

# The smallest system of the release, with this one's certificates and resolver.
make_base() {
  local uri
  uri=$(archive)
  debootstrap --variant=minbase "$suite" "$1" "$uri" >"$work/out" 2>&1 || return
  printf 'deb %s %s main\n' "$uri" "$suite" >"$1/etc/apt/sources.list"
  mkdir -p "$1/etc/ssl/certs"
  cp -rL /etc/ssl/certs/. "$1/etc/ssl/certs/" 2>/dev/null
  cp /etc/resolv.conf /etc/hosts "$1/etc/"
  rm -rf "$1"/var/cache/apt/archives/*.deb
}

# new_system NAME: a copy of it in $work/NAME.
new_system() {
  local root=$work/$1
  cp -a "$base" "$root" && mount -t proc proc "$root/proc" && mount -t sysfs sysfs "$root/sys" &&
    mount --rbind /dev "$root/dev"
}

inside() {
  env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    JOBS="$(nproc)" chroot "$work/$1" bash -euc "$2"
}

command -v debootstrap >/dev/null || skip "there is no debootstrap (tools/deps --packages)"
[[ -n $(archive) ]] || skip "this system has no archive of Debian"
base=${HAUL_SYSTEMS-$work}/$suite
[[ -e $base ]] || make_base "$base" || skip "no system could be made: $(tail -n 1 "$work/out")"

echo "-- build"
new_system builder || exit
git -c safe.directory='*' clone -q "$source" "$work/builder/home/haul"
holds "a builder has the tools" inside builder "apt-get update -q
  apt-get install -qy --no-install-recommends git dpkg-dev fakeroot lintian
  cd /home/haul && cp -r packaging/debian debian
  apt-get build-dep -qy --no-install-recommends -P pkg.haul.noucx ./ && rm -r debian"
inside builder "apt-get install -qqy --no-install-recommends libucx0 autoconf automake libtool
  cd /home/haul && tests/ucx/source --fetch" >"$work/ucx.log" 2>&1 ||
  echo "skipped ucx-haul: $(tail -n 1 "$work/ucx.log")"
inside builder "cd /home/haul && mkdir -p build/deb && touch build/deb/{other_0.1.0-1,haul_0.0.9-1}.dsc"
holds "the packages are built, and lintian finds no errors and warnings" \
  inside builder "cd /home/haul && tools/deb"
((failures == 0)) || exit 1
built=$work/builder/home/haul/build/deb
holds "of the files in the folder, those of other packages stay" test -e "$built/other_0.1.0-1.dsc" -a ! -e "$built/haul_0.0.9-1.dsc"
(cd "$built" && stat -c '        %n %s bytes' -- *.deb)

echo "-- a system with nothing else"
new_system fresh || exit
mkdir "$work/fresh/packages" && cp "$built"/*.deb "$work/fresh/packages/"
cp -r "$source/packaging/debian/tests" "$work/fresh/packages/"
inside fresh "apt-get update -q" >"$work/out" 2>&1
began=$SECONDS
holds "apt installs command and library alone" inside fresh \
  "cd /packages && apt-get install -qy ./haul_*.deb ./libhaul0_*.deb"
holds "a file is written and read, over map and tcp" inside fresh "/packages/tests/transfer"
echo "        from the start of apt to the verified transfers: $((SECONDS - began)) s"
holds "the man page is there" inside fresh "test -s /usr/share/man/man1/haul-put.1.gz"
holds "nothing was enabled" inside fresh "! ls /etc/systemd/system/*.wants/haul.* 2>/dev/null"
"$source/tests/install/systemd.sh" --installed "$work/fresh" >"$work/systemd.log" 2>&1
status=$?
sed 's/^/        | /' "$work/systemd.log"
((status == 77)) || holds "under systemd the units work" test "$status" = 0
holds "apt installs the other packages" inside fresh "cd /packages && apt-get install -qy ./*.deb gcc libc6-dev pkgconf"
holds "the man pages of the calls are there" inside fresh "for page in region file; do test -s /usr/share/man/man3/haul_\$page.3.gz; done"
for test in consumer python plugins; do
  holds "the packages pass '$test'" inside fresh "/packages/tests/$test"
done
holds "all are removed" inside fresh \
  "apt-get purge -qy 'libhaul*' haul libhf3fs-haul '*-haul' && ! ls -d /usr/lib/*/haul /usr/bin/haul 2>/dev/null"

echo "$failures failed"
((failures == 0))
