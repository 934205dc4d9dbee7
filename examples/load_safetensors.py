# SPDX-License-Identifier: MIT
"""Moves a safetensors file into another process's memory, where it is used as tensors.

The bytes go from the page cache into the worker's region, and the worker creates PyTorch tensors over
them, all without further copies. The header is checked before it is used, on both sides.

    python3 load_safetensors.py FILE
"""

import os
import subprocess
import sys

import haul
import haul.safetensors


def in_torch(view):
    """A PyTorch tensor of it; None if this PyTorch has no such type. Some versions import fewer types
    through DLPack than they have (no float8, no bool), so it is imported as integers of the same size."""
    import torch  # only in the worker, as this import is slow

    dtype = getattr(torch, view.dtype, None)
    if dtype is None:
        return None
    bits = 8 * torch.empty((), dtype=dtype).element_size()
    integers = view.region.tensor(f"int{bits}", view.shape, offset=view.offset)
    return torch.from_dlpack(integers).view(dtype)


def show(tensors):
    for name, view in tensors.items():
        tensor = in_torch(view)
        shape = "x".join(map(str, view.shape))
        print(f"worker: {name:24} {view.dtype:16} {shape:>12}", end="")
        if tensor is None:
            print("  this PyTorch has no such type")
        elif tensor.is_complex():
            print(f"  sum {tensor.sum().item():g}")
        else:
            print(f"  sum {tensor.double().sum().item():g}")


def work():
    """The receiving process: a message with the length tells it how much to allocate."""
    with haul.Node("worker") as node:
        print(node.listen(f"unix://@haul-load-safetensors-{os.getpid()}"), flush=True)
        message = node.receive(timeout=30)
        region = node.alloc(message.tag)
        region.publish("weights", haul.WRITE)
        message.peer.send(b"send it")
        node.receive(timeout=600)
        region.unpublish("weights")  # from now on no peer writes to it
        show(haul.safetensors.tensors(region))


def load(path):
    with open(path, "rb") as file:
        haul.safetensors.entries(file)  # checked before there is a worker
    worker = subprocess.Popen(
        [sys.executable, __file__, "--work"], stdout=subprocess.PIPE, text=True
    )
    with worker, haul.Node("loader") as node:
        try:
            address = worker.stdout.readline().strip()
            peer = node.connect(address, timeout=10)
            peer.send(tag=os.path.getsize(path))
            node.receive(timeout=10)
            written = haul.safetensors.write(path, f"{address}/weights", node=node, timeout=600)
            print(f"loader: {len(written)} tensors written and verified", flush=True)
            peer.send(b"it is there")
            sys.stdout.write(worker.stdout.read())
        except BaseException:
            worker.kill()
            raise
    return worker.returncode


if __name__ == "__main__":
    try:
        if len(sys.argv) != 2:
            sys.exit(__doc__)
        sys.exit(work() if sys.argv[1] == "--work" else load(sys.argv[1]))
    except haul.safetensors.Damaged as error:
        sys.exit(f"the file is damaged: {error}")
    except (OSError, ValueError, haul.Error) as error:
        sys.exit(str(error))
