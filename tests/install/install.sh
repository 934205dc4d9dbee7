#!/bin/bash
# SPDX-License-Identifier: MIT
#
# Installs into a fresh prefix and checks the result: consumers by pkg-config and find_package, in C and C++;
# dependencies, exports and size of the library; each header alone.
#
#   install.sh BUILD SOURCE VERSION COMPILER

set -u # ctest bounds the time
build=$1 source=$2 version=$3 cc=$4
here=$source/tests/install
work=$(mktemp -d "${TMPDIR:-/tmp}/haul-install.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
prefix=$work/prefix
strict=(-Wall -Wextra -Wpedantic -Werror)
unset DESTDIR LD_LIBRARY_PATH

# shellcheck source=tests/support/holds.sh
source "$source/tests/support/holds.sh"

is_empty() { [[ -z $1 ]] || { echo "$1"; false; }; }
is_same() { [[ $1 == "$2" ]] || { echo "$1, and not $2"; false; }; }
# A header may hold macros alone.
compiles() {
  "$cc" -x "$1" "-std=$2" "${strict[@]}" "${@:4}" -fsyntax-only - <<<"#include \"$3\""$'\ntypedef int not_empty;'
}

echo "-- installing"
holds "it installs" cmake --install "$build" --prefix "$prefix"
library=$(find "$prefix" -name libhaul.so)
libdir=$(dirname "$library")
for file in bin/haul include/haul/haul.h include/haul/device.h include/haul/access.h include/haul/broadcast.h include/haul/cache.h include/haul/world.h include/haul/directory.h include/haul/file.h include/haul/stats.h include/haul/log.h include/haul/cudahook.h share/man/man1/haul.1 \
  share/man/man5/haul.conf.5 share/man/man7/haul-cudahook.7 share/man/man7/haul-usrbio.7 \
  share/man/man7/haul-nccl.7 share/man/man7/haul-nixl.7 share/man/man7/haul-ucx.7 \
  include/hf3fs_usrbio.h include/hf3fs_usrbio_gdr.h include/hf3fs/hf3fs_usrbio.h include/hf3fs/hf3fs_usrbio_gdr.h \
  share/bash-completion/completions/haul share/zsh/site-functions/_haul share/fish/vendor_completions.d/haul.fish; do
  holds "$file is there" test -s "$prefix/$file"
done
holds "every page of the source is there" is_same \
  "$(grep -rL '^\.so ' --include='*.[13]' "$prefix/share/man" | wc -l)" "$(find "$source/man" -name '*.[13]' | wc -l)"
# calls_without_page: calls that no page, or link to a page, is named after.
calls_without_page() {
  local name page
  while read -r name; do
    page=$prefix/share/man/man3/$name.3
    [[ -s $page ]] && page=$prefix/share/man/$(sed -n 's/^\.so //p' "$page")
    [[ -e $page ]] || echo "$name"
  done < <(sed -n 's/^\.Nm \(haul_[a-z0-9_]*\).*/\1/p' "$source"/man/*.3 | sort -u)
}
holds "each call has a page of its name" is_same "$(calls_without_page)" ""
for unit in haul.service haul-mount@.service; do
  holds "$unit names the command that was installed" grep -q "^ExecStart=$prefix/bin/haul " \
    "$prefix/lib/systemd/system/$unit"
done
if command -v systemd-analyze >/dev/null; then
  holds "systemd has nothing to say against its units" systemd-analyze verify --man=no \
    "$prefix"/lib/systemd/system/haul.{service,socket} "$prefix/lib/systemd/system/haul-mount@.service"
else
  echo "skipped what systemd says of the units: there is no systemd-analyze (apt-get install systemd)"
fi
holds "the command runs where it was installed" "$prefix/bin/haul" info
holds "the command's version is the project's" \
  grep -q -w -F "$version" <("$prefix/bin/haul" --version)
mv "$prefix" "$work/moved" && prefix=$work/moved && libdir=$work/moved${libdir#"$work/prefix"}
library=$libdir/libhaul.so
holds "the command runs where it was moved to" "$prefix/bin/haul" info

# If UCX's source was found.
ucx=$(find "$prefix" -name libuct_haulgaudi.so.0)
[[ -z $ucx ]] || holds "UCX's module finds the library from where it was moved to" is_empty \
  "$(LD_LIBRARY_PATH='' ldd "$ucx" | grep 'libhaul.*not found')"

echo "-- the library"
dynamic=$(readelf -dW "$library")
holds "its soname carries the major version" is_same \
  "$(sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p' <<<"$dynamic")" "libhaul.so.${version%%.*}"
needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic" | tr '\n' ' ')
holds "it needs libc and libxxhash at most" is_empty \
  "$(tr ' ' '\n' <<<"$needed" | grep -v -E '^(libc\.so|libxxhash\.so|ld-linux|$)')"
echo "        NEEDED $needed"
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | sort)
declared=$(printf '#include <haul/%s.h>\n' device access file world directory stats log | "$cc" -E -P -x c -I"$source/include" - |
  grep -o '\bhaul_[a-z_]*(' | tr -d '(' | sort -u)
holds "it exports what the headers declare, and nothing else" is_same "$exported" "$declared"
holds "symbols carry the version node" is_empty \
  "$(nm -D --defined-only "$library" | grep haul_ | grep -v "@@HAUL_${version%%.*}$")"
strip -o "$work/stripped" "$library"
size=$(stat -c %s "$work/stripped")
echo "        stripped size $((size / 1024)) KiB"
# The limit is for the build that ships: gcc, optimised across files.
if [[ $("$cc" --version) == *clang* ]] || ! grep -q '^HAUL_LTO:BOOL=ON' "$build/CMakeCache.txt"; then
  echo "skipped the library's size: this build is not optimised across files"
else
  holds "stripped it is at most 300 KiB, 32 for each of four drivers, and 20 for rails, offers and p2p memory" \
    test "$size" -le $((448 * 1024))
fi

probes=$(readelf -n "$library" 2>/dev/null | sed -n '/Provider: haul/{n;s/^ *Name: //p}' | sort -u | tr '\n' ' ')
if echo '#include <sys/sdt.h>' | "$cc" -E -x c - >/dev/null 2>&1; then
  holds "it has probes at submit, post and complete" is_same "$probes" "complete post submit "
else
  echo "skipped the probes: no <sys/sdt.h> (systemtap-sdt-dev)"
fi

echo "-- the library of services"
services=$libdir/libhaul-services.so
holds "it needs libc, libxxhash and libhaul at most" is_empty \
  "$(readelf -dW "$services" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v -E '^(lib(c|xxhash|haul)\.so|ld-linux)')"
exported=$(nm -D --defined-only "$services" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | sort)
declared=$(printf '#include <haul/%s.h>\n' broadcast cache | "$cc" -E -P -x c -I"$source/include" - |
  grep -oE '\bhaul_(broadcast|cache)_[a-z_]*\(' | tr -d '(' | sort -u)
holds "it exports what its headers declare, and nothing else" is_same "$exported" "$declared"
holds "its symbols carry the version node" is_empty \
  "$(nm -D --defined-only "$services" | grep haul_ | grep -v "@@HAUL_SERVICES_${version%%.*}$")"

echo "-- the CUDA hook"
hook=$libdir/libhaul-cudahook.so
holds "it needs libc and libhaul at most" is_empty \
  "$(readelf -dW "$hook" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v -E '^(libc\.so|libhaul\.so|ld-linux)')"
holds "it finds the library where it was moved to" env LD_PRELOAD="$hook" true
exported=$(nm -D --defined-only "$hook" | awk '{print $3}' | grep -v '^cuda' | sort)
declared=$("$cc" -E -P "-I$source/include" "$source/integrations/cudahook/haul-cudahook.h" |
  grep -o '\bhaul_cudahook_[a-z_]*(' | tr -d '(' | sort -u)
holds "it exports what its header declares, and calls of CUDA's" is_same "$exported" "$declared"
holds "its symbols carry no version" is_empty "$(nm -D --defined-only "$hook" | grep @)"

echo "-- the plugin for NCCL"
plugin=$libdir/libnccl-net-haul.so
holds "it needs libc and libhaul at most" is_empty \
  "$(readelf -dW "$plugin" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v -E '^(libc\.so|libhaul\.so|ld-linux)')"
holds "it exports NCCL's tables alone" is_same \
  "$(nm -D --defined-only "$plugin" | awk '{print $3}' | sort | tr '\n' ' ')" \
  "ncclNetPlugin_v10 ncclNetPlugin_v11 ncclNetPlugin_v12 ncclNetPlugin_v8 ncclNetPlugin_v9 "

echo "-- the plugin for NIXL"
plugin=$libdir/haul/nixl/libplugin_HAUL.so
if [[ -e $plugin ]]; then
  holds "it needs libhaul and the C++ library at most" is_empty \
    "$(readelf -dW "$plugin" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
      grep -v -E '^(lib(c|m|haul|stdc\+\+|gcc_s|c\+\+|c\+\+abi)\.so|ld-linux)')"
  holds "it finds the library from where it was moved to" is_empty \
    "$(LD_LIBRARY_PATH='' ldd "$plugin" | grep 'libhaul.*not found')"
  holds "it exports what NIXL looks up alone" is_same "nixl_plugin_fini nixl_plugin_init " \
    "$(nm -D --defined-only "$plugin" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | sort | tr '\n' ' ')"
else
  echo "skipped the plugin for NIXL: it was built without a C++20 compiler"
fi

echo "-- the library for 3FS's programs"
usrbio=$libdir/libhf3fs_api_shared.so
holds "it is there by that name, and needs libc alone" is_same libc.so.6 \
  "$(readelf -dW "$usrbio" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')"
export PKG_CONFIG_PATH=$libdir/pkgconfig
read -r -a flags < <(pkg-config --cflags --libs hf3fs_api_shared)
holds "a program of 3FS's links it" "$cc" -xc - "${flags[@]}" -o "$work/usrbio" <<<'#include <hf3fs_usrbio.h>
int main(void) { return hf3fs_ior_size(1) == 4336 ? 0 : 1; }'
holds "and runs" env LD_LIBRARY_PATH="$libdir" "$work/usrbio"

echo "-- the module for files"
module=$libdir/haul/libhaul-storage.so
mount_says() { grep -q -e "$1" <("$prefix/bin/haul" mount /nowhere/at/all "$work" 2>&1); }
if [[ -e $module ]]; then
  holds "the command finds it where it was moved to" mount_says "cannot use /nowhere/at/all"
  holds "it exports its calls and no more" is_same "$(printf '%s@@HAUL_STORAGE_0\n' haul_storage_{mount,service,tree})" \
    "$(nm -D --defined-only "$module" | awk '$2 != "A" {print $3}' | sort)"
else
  holds "the command says what is missing" mount_says "^hint: .*libfuse3-dev"
fi

echo "-- the module that reads files into regions"
reader=$libdir/haul/libhaul-file.so
head -c 5000 "$prefix/bin/haul" >"$work/read"
loads() {
  timeout 2 "$prefix/bin/haul" serve --listen "unix://@haul-install-$$" --region m=host:8K --load "m=$work/read" |
    grep "^loaded m: 4.88 KiB of"
}
holds "the library finds it where it was moved to" loads
holds "it needs libc alone" is_same libc.so.6 \
  "$(readelf -dW "$reader" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')"
holds "it exports its table and no more" is_same haul_file_module \
  "$(nm -D --defined-only "$reader" | awk '{print $3}')"

echo "-- the module for metrics"
metrics=$libdir/haul/libhaul-metrics.so
serve_says() {
  grep -q -e "$1" <(timeout 10 "$prefix/bin/haul" serve --listen "unix://@haul-install-$$" --metrics 1 2>&1)
}
if [[ -e $metrics ]]; then
  holds "it exports its table and no more" is_same haul_metrics \
    "$(nm -D --defined-only "$metrics" | awk '{print $3}')"
  holds "nothing else needs what it needs" is_empty "$(grep microhttpd <<<"$needed")"
else
  holds "the command says what is missing" serve_says "^hint: .*libmicrohttpd-dev"
fi

echo "-- the module for directories"
names=$libdir/haul/libhaul-directory.so
ls_says() { grep -q -e "$1" <("$prefix/bin/haul" ls etcd://127.0.0.1:1/x 2>&1); }
if [[ -e $names ]]; then
  holds "the library finds it where it was moved to" ls_says "check that etcd listens there"
  holds "it exports its table and no more" is_same haul_directory_module \
    "$(nm -D --defined-only "$names" | awk '{print $3}')"
  holds "the library needs nothing of what it needs" is_empty "$(grep -E 'curl|jansson' <<<"$needed")"
else
  holds "the library says what is missing" ls_says "^hint: .*libcurl4"
fi

echo "-- consumers"
holds "pkg-config knows the version" is_same "$(pkg-config --modversion haul)" "$version"
read -r -a flags < <(pkg-config --cflags --libs haul)
for language in c:c11 c:c99 c++:c++11 c++:c++20; do
  holds "compiles through pkg-config as ${language#*:}" "$cc" "-x${language%:*}" \
    "-std=${language#*:}" "${strict[@]}" "-DHAUL_EXPECTED_VERSION=\"$version\"" \
    "$here/consumer.c" -xnone "${flags[@]}" -o "$work/consumer"
  holds "runs" env LD_LIBRARY_PATH="$libdir" "$work/consumer"
done
holds "find_package finds it" cmake -S "$here/project" -B "$work/project" \
  -DCMAKE_PREFIX_PATH="$prefix" -DEXPECTED_VERSION="$version"
holds "both build" cmake --build "$work/project"
holds "the C one runs" "$work/project/consumer_c"
holds "the C++ one runs" "$work/project/consumer_cc"
holds "find_package refuses another minor version" is_same 1 \
  "$(cmake -S "$here/project" -B "$work/other" -DCMAKE_PREFIX_PATH="$prefix" \
    -DEXPECTED_VERSION=0.99 >/dev/null 2>&1; echo $?)"

echo "-- headers"
for language in c:c99 c:c11 c:c17 c++:c++11 c++:c++20; do
  holds "haul.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$source/include/haul/haul.h"
  holds "device.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/device.h" -I"$prefix/include"
  holds "access.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/access.h" -I"$prefix/include"
  holds "world.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/world.h" -I"$prefix/include"
  holds "broadcast.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/broadcast.h" -I"$prefix/include"
  holds "cache.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/cache.h" -I"$prefix/include"
  holds "stats.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/stats.h" -I"$prefix/include"
  holds "log.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/log.h" -I"$prefix/include"
  holds "directory.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/directory.h" -I"$prefix/include"
  holds "file.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/file.h" -I"$prefix/include"
  holds "cudahook.h alone as ${language#*:}" \
    compiles "${language%:*}" "${language#*:}" "$prefix/include/haul/cudahook.h" -I"$prefix/include"
done
fuse=$(pkg-config --variable=includedir fuse3 2>/dev/null)
while read -r header; do
  [[ $header == */storage/mount/* && ! -e $module ]] && continue
  [[ $header == */src/directory/* && ! -e $names ]] && continue
  holds "${header#"$source/"} alone" compiles c gnu11 "$header" -D_GNU_SOURCE -I"$source/src" \
    -I"$source/include" -isystem "${fuse:-/usr/include}/fuse3"
done < <(find "$source/src" -name '*.h' | sort)

echo "$failures failed"
((failures == 0))
