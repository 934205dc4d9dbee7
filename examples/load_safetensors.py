# SPDX-License-Identifier: MIT
"""Moves a safetensors file into another process's memory, where it is used as tensors.

The transfer reads the mapped file, and the worker creates PyTorch tensors over the received bytes, all
without further copies. The header is validated before it is used.

    python3 load_safetensors.py FILE
"""

import json
import mmap
import os
import subprocess
import sys

import haul

HEADER_MAX = 100_000_000  # the limit of safetensors itself
TYPES = {  # without F4, F6_E2M3 and F6_E3M2, whose elements are not whole bytes
    "BOOL": "bool",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E8M0": "float8_e8m0fnu",
    "F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip


class Refused(Exception):
    """A file that this example does not support."""


class Damaged(Refused):
    pass


def read_header(data):
    """The JSON at the start, and the offset of the tensors' bytes."""
    if len(data) < 8:
        raise Damaged("it is shorter than the length of a header")
    length = int.from_bytes(data[:8], "little")
    if length > min(HEADER_MAX, len(data) - 8):
        raise Damaged(f"its header would have {length} bytes")
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"its header is no JSON: {error}") from None
    if not isinstance(header, dict):
        raise Damaged("its header is no object")
    return header, 8 + length


def is_numbers(value):
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def tensor_of(region, entry, start):
    """The tensor that an entry of the header describes. Region.tensor checks the bounds."""
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise Damaged("it has no type")
    dtype, shape, offsets = entry["dtype"], entry.get("shape"), entry.get("data_offsets")
    if dtype not in TYPES:
        raise Refused(f"this example does not support type {dtype!r}")
    if not is_numbers(shape) or not is_numbers(offsets) or len(offsets) != 2:
        raise Damaged("it has no shape, or no offsets")
    try:
        tensor = region.tensor(TYPES[dtype], shape, offset=start + offsets[0])
    except (ValueError, OverflowError) as error:
        raise Damaged(str(error)) from None
    if tensor.nbytes != offsets[1] - offsets[0]:
        raise Damaged("its shape and its offsets do not agree")
    return tensor


def tensors_of(region):
    """All tensors of a region with a file's bytes, by name."""
    with region.bytes() as data:
        header, start = read_header(data)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            tensors[name] = tensor_of(region, entry, start)
        except Refused as error:
            raise type(error)(f"tensor {name!r}: {error}") from None
    return tensors


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
        region.publish("weights", haul.READ | haul.WRITE)
        message.peer.send(b"send it")
        node.receive(timeout=600)
        region.unpublish("weights")  # from now on no peer writes to it
        show(tensors_of(region))


def load(path):
    with open(path, "rb") as file, haul.Node("loader") as node:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        source = node.wrap(pages)
        tensors_of(source)  # validated before the transfer
        worker = subprocess.Popen(
            [sys.executable, __file__, "--work"], stdout=subprocess.PIPE, text=True
        )
        with worker:
            try:
                peer = node.connect(worker.stdout.readline().strip(), timeout=10)
                peer.send(tag=source.length)
                node.receive(timeout=10)
                print(peer.lookup("weights").write(source, timeout=600).wait(600).report())
                peer.send(b"it is there")
                sys.stdout.flush()
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
    except Damaged as error:
        sys.exit(f"the file is damaged: {error}")
    except Refused as error:
        sys.exit(str(error))
    except (OSError, ValueError, haul.Error) as error:
        sys.exit(str(error))
