#!/bin/bash
# SPDX-License-Identifier: MIT
#
# mypy.stubtest compares the types of the package, stub and modules, with the objects that it has; mypy --strict
# checks a program. Needs PyPI. tests/python/test_api.py compares the stub without it.
#
#   stubtest.sh PYTHON PACKAGE

set -u # ctest bounds the time
python=$1 package=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/haul-stubtest.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
# shellcheck source=tests/support/holds.sh
source "${0%/*}/../support/holds.sh"

"$python" -m venv "$work/venv" >"$work/out" 2>&1 ||
  { echo "skipped stubtest: $python makes no environment: $(tail -n 1 "$work/out")" && exit 77; }
"$work/venv/bin/pip" install -q --disable-pip-version-check mypy==2.4.1 >"$work/out" 2>&1 ||
  { echo "skipped stubtest: no mypy from PyPI: $(tail -n 1 "$work/out")" && exit 77; }
cp -r "$package/haul" "$work/haul" # to change the stub of the copy
printf '[mypy]\n[mypy-numpy]\nignore_missing_imports = True\n' >"$work/mypy.ini"
export PYTHONPATH=$work MYPYPATH=$work PYTHONDONTWRITEBYTECODE=1
cd "$work" || exit 1

exits() { # STATUS COMMAND...
  "${@:2}"
  (($? == $1))
}
stubtest=("$work/venv/bin/python" -m mypy.stubtest haul --mypy-config-file "$work/mypy.ini")
holds "the types are those of the package" "${stubtest[@]}"

cat >program.py <<'END_OF_PROGRAM'
import asyncio
import haul
import haul.broadcast
import haul.cache
import haul.safetensors

def use(node: haul.Node, peer: haul.Peer) -> int:
    with haul.share(b"bytes", "name", haul.READ, node=node) as shared:
        haul.send(b"bytes", shared.address)
        received: haul.Received = haul.receive(peer, limit=5)
    with node.join(timeout=5) as world, node.directory("etcd://h/p") as walk:
        print(world.rank, walk.next().entry)
    try:
        region: haul.Region = node.wrap_file(0)
    except haul.NotSupported as error:
        print(error.hint)
    written = peer.lookup("name").write(region, notify=b"written", tag=7)
    haul.wait_all([written], timeout=5)
    print(haul.wait_any({written}).report(), haul.File(0).read(region).reason, node.ports()[0].name)
    with haul.cache.Cache(node, ["host"], replicas=2) as cache, haul.cache.Store(node, "file") as store:
        print(cache.get(region, [(b"key", 0, 8)])[0].error, cache.list(0)[0].checksum, store.stat().memory.blocks)
    with haul.broadcast.Source(node, "name") as source, haul.broadcast.Receiver(node, "a", "n") as end:
        source.publish(region)
        report = end.receive(end.next(timeout=5), bytearray(7), progress=print)
        print(source.members()[0].state, report.feeders[0].name)
    return received.id + len(haul.safetensors.tensors(region))

async def wait(transfer: haul.Transfer) -> haul.Report:
    return (await transfer).report()
END_OF_PROGRAM
holds "a program with types passes --strict" "$work/venv/bin/mypy" --strict --follow-imports=silent program.py
sed 's/limit=5/limit="5"/' program.py >wrong.py
holds "one with a wrong argument does not" exits 1 "$work/venv/bin/mypy" --strict --follow-imports=silent wrong.py

sed -i 's/    def fileno(self) -> int: \.\.\.//' haul/_haul.pyi
holds "a method that the stub lacks is noticed" exits 1 "${stubtest[@]}"
echo "$failures failed"
((failures == 0))
