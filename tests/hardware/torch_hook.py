#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""torch_hook.py HOOK HAUL: PyTorch with the CUDA hook, preloaded and as its allocator.

Computes with tensors, publishes one, and reads and writes it with the command. HOOK is
libhaul-cudahook.so, HAUL the command. Exits with 77 without PyTorch or a GPU.
"""

import ctypes
import os
import subprocess
import sys
import tempfile

BOUND = 120  # seconds for each process
READ_AND_WRITE = 3  # HAUL_READ | HAUL_WRITE


def import_torch():
    """Import PyTorch, or exit with the reason if it has no GPU."""
    try:
        import torch
    except ImportError as error:
        skip(f"python3 has no torch ({error})")
    if not torch.cuda.is_available():
        skip(f"torch {torch.__version__} finds no GPU")
    return torch


def skip(why):
    print(f"skipped torch_hook: {why}")
    sys.exit(77)


def require(holds, what):
    if not holds:
        print(f"FAILED  {what}")
        sys.exit(1)
    print(f"ok      {what}")


def run_haul(haul, *arguments):
    plain = {name: value for name, value in os.environ.items()
             if name != "LD_PRELOAD" and not name.startswith("HAUL_CUDAHOOK_")}
    done = subprocess.run([haul, *arguments], capture_output=True, text=True, timeout=BOUND,
                          env=plain)
    require(done.returncode == 0, f"haul {arguments[0]}: {done.stderr.strip() or 'done'}")


class Hook:
    """Two calls of haul-cudahook.h."""

    def __init__(self, path):
        library = ctypes.CDLL(path)  # already loaded
        self._find, self._publish = library.haul_cudahook_find, library.haul_cudahook_publish
        self._find.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p),
                               ctypes.POINTER(ctypes.c_uint64)]
        self._publish.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint]

    def offset_of(self, tensor):
        """The offset of the tensor in its allocation; None if that is not from the hook."""
        region, offset = ctypes.c_void_p(), ctypes.c_uint64()
        code = self._find(tensor.data_ptr(), ctypes.byref(region), ctypes.byref(offset))
        return offset.value if code == 0 else None

    def publish(self, tensor, name):
        return self._publish(tensor.data_ptr(), name.encode(), READ_AND_WRITE)


def compute(torch):
    """Allocations of many sizes on two streams, with results to check."""
    generator = torch.Generator().manual_seed(1)
    left = torch.rand(1024, 1024, generator=generator)
    right = torch.rand(1024, 1024, generator=generator)
    wanted = left.double() @ right.double()
    other = torch.cuda.Stream()
    kept = []
    for turn in range(50):
        product = left.cuda() @ right.cuda()
        with torch.cuda.stream(other):
            kept.append(torch.full((1 << (10 + turn % 14),), turn, device="cuda"))
        if turn % 7 == 6:
            kept.clear()
    torch.cuda.synchronize()
    require(torch.allclose(product.double().cpu(), wanted, rtol=1e-2), "products are right")
    require(all(bool((one == one[0]).all()) for one in kept), "tensors keep their contents")


def bytes_of(tensor):
    """Without numpy, which may be missing."""
    host = tensor.cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), host.nbytes)


def hand_over(torch, hook, haul, listen, folder):
    tensor = torch.arange(1 << 20, dtype=torch.int32, device="cuda") * 3
    torch.cuda.synchronize()
    offset = hook.offset_of(tensor)
    require(offset is not None, "a tensor of 4 MiB lies in the hook's memory")
    require(hook.publish(tensor, "weights") == 0, "its allocation is published")
    read, written = os.path.join(folder, "read"), os.path.join(folder, "written")
    where = ["--offset", str(offset)]
    run_haul(haul, "get", f"{listen}/weights", read, *where, "--length", str(tensor.nbytes))
    with open(read, "rb") as file:
        require(file.read() == bytes_of(tensor), "another process reads its bytes")
    with open(written, "wb") as file:
        file.write(bytes_of(tensor.cpu() + 1))
    run_haul(haul, "put", written, f"{listen}/weights", *where)
    wanted = torch.arange(1 << 20, dtype=torch.int32) * 3 + 1
    require(bool((tensor.cpu() == wanted).all()), "and writes them")


def inside(mode, hook_path, haul):
    torch = import_torch()
    if mode == "allocator":
        torch.cuda.memory.change_current_allocator(torch.cuda.memory.CUDAPluggableAllocator(
            hook_path, "haul_cudahook_alloc", "haul_cudahook_free"))
    compute(torch)
    with tempfile.TemporaryDirectory() as folder:
        hand_over(torch, Hook(hook_path), haul, os.environ["HAUL_CUDAHOOK_LISTEN"], folder)


def main(hook, haul):
    torch = import_torch()
    print(f"torch {torch.__version__} for CUDA {torch.version.cuda}")
    status = 0
    for mode in ("allocator", "preload"):
        print(f"-- {mode}", flush=True)
        environment = dict(os.environ)
        with tempfile.TemporaryDirectory() as folder:
            environment["HAUL_CUDAHOOK_LISTEN"] = f"unix://{folder}/socket"
            if mode == "preload":
                environment["LD_PRELOAD"] = hook
            done = subprocess.run([sys.executable, __file__, "--inside", mode, hook, haul],
                                  env=environment, timeout=3 * BOUND)
        if done.returncode:
            print(f"FAILED  {mode}: status {done.returncode}")
            status = 1
    return status


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--inside":
        sys.exit(inside(*sys.argv[2:]))
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*(os.path.abspath(path) for path in sys.argv[1:])))
