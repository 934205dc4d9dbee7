#!/bin/bash
# SPDX-License-Identifier: MIT
#
# The wheel: its tag and size, a clean environment, its content, and imports beside other users of native
# libraries in every order. Needs PyPI.
#
#   wheel.sh SOURCE PYTHON

set -u # ctest bounds the time
source=$1 python=$2
peers=${HAUL_NIXL_WHEEL-$source/build/peers}
work=$(mktemp -d "${TMPDIR:-/tmp}/haul-wheel.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
unset PYTHONPATH LD_LIBRARY_PATH
export PIP_DISABLE_PIP_VERSION_CHECK=1

# shellcheck source=tests/support/holds.sh
source "$source/tests/support/holds.sh"
says() { # PATTERN COMMAND...
  grep -q -e "$1" <("${@:2}" 2>&1) || "${@:2}"
}
finish() {
  echo "$failures failed"
  ((failures == 0))
  exit
}

"$python" -m venv "$work/probe" >"$work/out" 2>&1 || { echo "skipped the wheel: $python makes no environment: $(tail -n 1 "$work/out")" && exit 77; }
"$work/probe/bin/pip" download -q --no-deps -d "$work/probe" scikit-build-core >"$work/out" 2>&1 ||
  { echo "skipped the wheel: no PyPI: $(tail -n 1 "$work/out")" && exit 77; }

echo "-- from a clone"
tree=$work/tree
git -c safe.directory='*' clone -q "$source" "$tree"
holds "it is built" env PYTHON="$python" "$tree/tools/wheel" "$work/wheel"
wheel=$(echo "$work"/wheel/*.whl)
[[ -e $wheel ]] || finish
holds "for every Python from 3.11 on, and glibc 2.34" grep -qE -- '-cp311-abi3-manylinux_2_(1[0-9]|2[0-9]|3[0-4])_x86_64' <<<"$wheel"
holds "it has less than 4 MB" test "$(stat -c %s "$wheel")" -lt 4000000
echo "        $(basename "$wheel"): $(stat -c %s "$wheel") bytes"

echo "-- in a clean environment"
"$python" -m venv "$work/clean"
here=$work/clean/bin
holds "one command installs it" "$here/pip" install -q "$wheel"
package=$("$here/python" -c 'import haul, os; print(os.path.dirname(haul.__file__))')
holds "python -m haul is the command" says "^haul $("$tree/tools/version") " "$here/python" -m haul version
holds "and so is haul" says "^haul $("$tree/tools/version") " "$here/haul" version
holds "no file names the folders of the build" \
  sh -c '! grep -rlE "$1|build/wheel" "$2" --include="*.so*" --include=haul --include="*.py"' - "$tree" "$package"
holds "the module for etcd is inside" says "check that etcd listens there" "$here/haul" ls etcd://127.0.0.1:1/x
holds "the module for mounts is inside" says "cannot use /nowhere/at/all" "$here/haul" mount /nowhere/at/all "$work"
# It ends, since it cannot listen there.
holds "the module that reads files into regions is inside" says "^loaded w: " \
  "$here/haul" serve --listen unix:///nowhere/at/all --region w=host:8M --load "w=$wheel"
holds "the library for programs of 3FS is inside" "$here/python" -c \
  "import ctypes; assert ctypes.CDLL('$package/lib/libhf3fs_api_shared.so').hf3fs_ior_size(1) == 4336"
holds "the plugin for NCCL is inside" "$here/python" -c \
  "import ctypes; ctypes.CDLL('$package/lib/libnccl-net-haul.so').ncclNetPlugin_v11"
for library in libfuse3 libjansson liburing libxxhash; do
  holds "the licence of the added $library is inside" test -s "$package/licenses/$library"
done
hidden=/usr/share/doc/libfuse3-dev/copyright
if unshare --mount true 2>/dev/null; then
  holds "without that of libfuse3 there is no wheel" says "no licence for the added libfuse3" \
    unshare --mount sh -c "mount --bind /dev/null $hidden && PYTHON=$python $tree/tools/wheel $work/none"
else
  echo "skipped the wheel without a licence: no namespaces"
fi
cat >"$work/transfer.py" <<'END'
import haul
with haul.Node() as node, haul.Node() as other:
    region, memory = other.alloc(4096), node.alloc(4096)
    region.publish("block", haul.READ | haul.WRITE)
    other.listen("tcp://127.0.0.1:0")
    memoryview(memory)[:5] = b"hello"
    remote = node.connect(other.addresses[0]).lookup("block")
    remote.write(memory, [(0, 8, 5)]).wait()
    assert bytes(memoryview(region)[8:13]) == b"hello"
    del remote, memory, region
END
holds "a transfer arrives" "$here/python" "$work/transfer.py"

echo "-- beside others"
"$python" -m venv --system-site-packages "$work/beside"
here=$work/beside/bin
holds "it is installed" "$here/pip" install -q --no-deps "$wheel"
declare -A modules=([haul]=haul)
# other NAME MODULE FOLDER PACKAGE: a module that can be imported by itself
other() {
  if PYTHONPATH=$3 "$here/python" -c "import $2" >"$work/out" 2>&1; then
    modules[$1]=$2
  else
    echo "skipped the import beside $1: $(tail -n 1 "$work/out") (hint: $4)"
  fi
}
other nixl nixl_cu12._api "$peers" "tools/deps --peers"
other mooncake mooncake.engine "$peers" "tools/deps --peers"
other torch torch "" "apt-get install python3-torch"
while read -r order; do
  holds "import $order" env PYTHONPATH="$peers" "$here/python" -c "
for name in '$order'.split():
    __import__(name)
exec(open('$work/transfer.py').read())"
done < <("$python" -c "
import itertools, sys
for order in itertools.permutations(sys.argv[1:]):
    print(*order)" "${modules[@]}")
if [[ -n ${modules[nixl]-} ]]; then
  holds "NIXL's wheel takes the plugin" env PYTHONPATH="$peers" XDG_CACHE_HOME="$work/cache" "$here/python" -m haul.nixl
fi
finish
