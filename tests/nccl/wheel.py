# SPDX-License-Identifier: MIT
"""The plugin in NCCL as its wheel ships it, up to the missing GPU.

  wheel.py PLUGIN    with HAUL_NCCL_WHEEL, the folder that the wheel is installed in

NCCL 2.21 loads it before it looks for a GPU, later versions after that; on a GPU
tests/hardware/nccl_load.py tests the same with any."""

import ctypes
import glob
import os
import subprocess
import sys


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def skip(why):
    print(f"skipped NCCL's wheel: {why}")
    sys.exit(77)


def load(library):
    """In a process of its own, as NCCL loads a plugin once: prints whether it is loaded, and NCCL's log."""
    nccl = ctypes.CDLL(library)
    nccl.ncclGetLastError.restype = ctypes.c_char_p
    one, comm, version = Id(), ctypes.c_void_p(), ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(version))
    print(f"NCCL {version.value}", flush=True)
    print(f"unique id: {nccl.ncclGetUniqueId(ctypes.byref(one))}", flush=True)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        print(f"mapped: {os.environ['NCCL_NET_PLUGIN'] in maps.read()}", flush=True)
    print(f"communicator: {nccl.ncclCommInitRank(ctypes.byref(comm), 1, one, 0)}", flush=True)
    print(f"error: {nccl.ncclGetLastError(None).decode()}", flush=True)


def run(library, plugin):
    environment = dict(
        os.environ,
        NCCL_NET_PLUGIN=plugin,
        NCCL_DEBUG="INFO",
        NCCL_DEBUG_SUBSYS="INIT,NET",
        NCCL_SOCKET_IFNAME="lo",
    )
    done = subprocess.run(
        [sys.executable, __file__, "--load", library],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
        check=False,
    )
    text = done.stdout.decode(errors="replace")
    print(text)
    return text


def check(good, what):
    print(f"{'ok     ' if good else 'FAILED '} {what}")
    return good


def main():
    folder = os.environ.get("HAUL_NCCL_WHEEL", "")
    found = glob.glob(os.path.join(folder, "nvidia/nccl/lib/libnccl.so.2"))
    if not found:
        skip("it is not installed (tools/deps --peers)")
    plugin = os.path.realpath(sys.argv[1])
    text = run(found[0], plugin)
    if "communicator: 0" in text:
        skip("this host has a GPU (tools/check-gpu runs tests/hardware/nccl_load.py)")
    haul = os.path.join(os.path.dirname(plugin), "../../src/libhaul.so.0")
    other = run(found[0], os.path.realpath(haul))
    results = [
        check("unique id: 0" in text and "mapped: True" in text, "NCCL loads the plugin"),
        check("Failed to find ncclNetPlugin" not in text, "it finds the plugin's table"),
        check("driver version is insufficient" in text, "only the GPU is missing"),
        check("Failed to find ncclNetPlugin" in other, "NCCL says so of a library without a table"),
    ]
    sys.exit(not all(results))


if sys.argv[1] == "--load":
    load(sys.argv[2])
else:
    main()
