#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""torch_hook.py HOOK HAUL: PyTorch with the CUDA hook, preloaded and as its allocator.

Computes with tensors, publishes one, and reads and writes it with the command. Preloaded, also:
tensors of several streams, CUDA graphs, tensors of other processes, PyTorch's other allocators, and
two ranks. HOOK is libhaul-cudahook.so, HAUL the command; HAUL_NCCL in the environment may name the
NCCL plugin. Exits with 77 without PyTorch or a GPU.
"""

import ctypes
import datetime
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

BOUND = 120  # seconds for all processes
READ_AND_WRITE = 3  # HAUL_READ | HAUL_WRITE
COUNT = 1 << 20  # of a tensor's elements, of 4 bytes: large enough for the hook


class Failed(Exception):
    """A requirement that does not hold, and has been printed."""


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
    print(f"{'ok     ' if holds else 'FAILED '} {what}", flush=True)
    if not holds:
        raise Failed(what)


def attempt(step, *arguments):
    """Whether the step has passed; its failure does not hide later ones."""
    try:
        step(*arguments)
        return True
    except Failed:
        return False
    except Exception as error:
        traceback.print_exc()
        print(f"FAILED  {step.__name__}: {type(error).__name__}: {error}", flush=True)
        return False


def run_haul(haul, *arguments):
    plain = {name: value for name, value in os.environ.items()
             if name != "LD_PRELOAD" and not name.startswith("HAUL_CUDAHOOK_")}
    done = subprocess.run([haul, *arguments], capture_output=True, text=True, timeout=BOUND,
                          env=plain)
    require(done.returncode == 0, f"haul {arguments[0]}: {done.stderr.strip() or 'done'}")


class Hook:
    """Calls of haul-cudahook.h."""

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


def use_as_allocator(torch, path):
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "haul_cudahook_alloc",
                                                         "haul_cudahook_free")
    record = ctypes.CDLL(path).haul_cudahook_record_stream
    allocator.allocator().set_record_stream_fn(ctypes.cast(record, ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(allocator)


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


def record_stream(torch):
    """Each tensor is dropped while another stream has still to read it."""
    other, copies = torch.cuda.Stream(), []
    for turn in range(20):
        tensor = torch.full((COUNT,), turn, dtype=torch.int32, device="cuda")
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            torch.cuda._sleep(2000000)  # cycles, about a millisecond
            copies.append(tensor * 2)
        tensor.record_stream(other)
        del tensor
        torch.full((COUNT,), -1, dtype=torch.int32, device="cuda")  # perhaps in its place
    torch.cuda.synchronize()
    require(all(bool((copy == 2 * turn).all()) for turn, copy in enumerate(copies)),
            "memory is not reused before a recorded stream is done")


def graph(torch, hook):
    given = torch.zeros(COUNT, dtype=torch.int32, device="cuda")
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        result = given * 2 + 1
    torch.cuda.current_stream().wait_stream(warm)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = given * 2 + 1
    for turn in range(1, 4):
        given.fill_(turn)
        captured.replay()
        torch.cuda.synchronize()
        require(bool((result == 2 * turn + 1).all()), f"replay {turn} of a graph is right")
    require(hook.offset_of(result) is not None, "a graph's tensor lies in the hook's memory")


def bytes_of(tensor):
    """Without numpy, which may be missing."""
    host = tensor.cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), host.nbytes)


def hand_over(torch, hook, haul, listen):
    tensor = torch.arange(COUNT, dtype=torch.int32, device="cuda") * 3
    torch.cuda.synchronize()
    offset = hook.offset_of(tensor)
    require(offset is not None, "a tensor of 4 MiB lies in the hook's memory")
    require(hook.publish(tensor, "weights") == 0, "its allocation is published")
    with tempfile.TemporaryDirectory() as folder:
        read, written = os.path.join(folder, "read"), os.path.join(folder, "written")
        where = ["--offset", str(offset)]
        run_haul(haul, "get", f"{listen}/weights", read, *where, "--length", str(tensor.nbytes))
        with open(read, "rb") as file:
            require(file.read() == bytes_of(tensor), "another process reads its bytes")
        with open(written, "wb") as file:
            file.write(bytes_of(tensor.cpu() + 1))
        run_haul(haul, "put", written, f"{listen}/weights", *where)
    wanted = torch.arange(COUNT, dtype=torch.int32) * 3 + 1
    require(bool((tensor.cpu() == wanted).all()), "and writes them")


def receive(connection):
    """Another process: adds 1 to each tensor, and answers whether it was as expected."""
    import torch
    wanted = torch.arange(COUNT, dtype=torch.int32)
    kept = []  # so that it is opened once
    for number in range(2):
        tensor = connection.recv()
        kept.append(tensor)
        right = bool((tensor.cpu() == wanted + number).all())
        tensor.add_(1)
        torch.cuda.synchronize()
        connection.send(right)
    connection.recv()  # until the sender has looked


def ask(connection, tensor):
    connection.send(tensor)
    require(connection.poll(BOUND / 2), "another process answers")
    return connection.recv()


def send_tensors(torch, hook, connection):
    """Sends two tensors of one segment."""
    wanted = torch.arange(COUNT, dtype=torch.int32)
    tensors = [wanted.cuda() + number for number in range(2)]
    torch.cuda.synchronize()
    require(all(hook.offset_of(tensor) is not None for tensor in tensors),
            "tensors to send lie in the hook's memory")
    for number, tensor in enumerate(tensors):
        require(ask(connection, tensor), f"another process reads tensor {number} that it was sent")
        require(bool((tensor.cpu() == wanted + number + 1).all()), f"and writes tensor {number}")


def processes(torch, hook):
    """torch.multiprocessing, with the start method spawn, which imports this file in the child."""
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=receive, args=(theirs,), daemon=True)
    child.start()
    theirs.close()
    try:
        send_tensors(torch, hook, ours)
        ours.send(None)
        child.join(BOUND / 2)
        require(child.exitcode == 0, f"the other process ends: {child.exitcode}")
    finally:
        if child.is_alive():
            child.kill()


def is_served(torch, hook, expected):
    tensor = torch.ones(COUNT, device="cuda")
    require((hook.offset_of(tensor) is not None) == expected,
            f"its tensors {'lie' if expected else 'do not lie'} in the hook's memory")


def reduce_over(torch, hook, backend, device):
    """One of two ranks."""
    distributed = torch.distributed
    torch.cuda.set_device(device)
    distributed.init_process_group(backend, timeout=datetime.timedelta(seconds=BOUND / 2))
    tensor = torch.full((COUNT,), distributed.get_rank() + 1, dtype=torch.int32, device="cuda")
    distributed.all_reduce(tensor)
    torch.cuda.synchronize()
    require(bool((tensor == 3).all()), f"rank {distributed.get_rank()}: {backend} sums tensors")
    require(hook.offset_of(tensor) is not None, "which lie in the hook's memory")
    distributed.destroy_process_group()


def steps_of(mode, torch, hook, haul):
    if mode in ("allocator", "preload"):
        yield compute, torch
        yield hand_over, torch, hook, haul, os.environ["HAUL_CUDAHOOK_LISTEN"]
        yield record_stream, torch
    if mode == "preload":
        yield graph, torch, hook
    if mode == "processes":
        yield processes, torch, hook
    if mode == "expandable segments":
        yield compute, torch
        yield record_stream, torch
        yield is_served, torch, hook, False
    if mode == "cudaMallocAsync":
        yield compute, torch
        yield record_stream, torch
        yield is_served, torch, hook, True
    if mode.startswith("gloo"):
        yield reduce_over, torch, hook, "gloo", 0
    if mode.startswith("nccl"):
        yield reduce_over, torch, hook, "nccl", int(os.environ["RANK"])


def inside(mode, hook_path, haul):
    torch = import_torch()
    if mode == "allocator":
        use_as_allocator(torch, hook_path)
    hook = Hook(hook_path)
    passed = [attempt(*step) for step in steps_of(mode, torch, hook, haul)]
    return 0 if all(passed) else 1


class Run:
    """A process of this file in one mode. All run at the same time, as PyTorch starts slowly."""

    def __init__(self, mode, hook, haul, **variables):
        self.mode = mode
        self._output = tempfile.TemporaryFile(mode="w+", errors="replace")
        plain = {name: value for name, value in os.environ.items()
                 if not name.startswith(("HAUL_CUDAHOOK_", "PYTORCH_"))}
        if mode != "allocator":
            variables["LD_PRELOAD"] = hook
        self._process = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--inside", mode, hook, haul],
            env={**plain, **variables}, stdin=subprocess.DEVNULL, stdout=self._output,
            stderr=subprocess.STDOUT, start_new_session=True)

    def end(self, until):
        """Waits until a time of time.monotonic, prints its output, returns whether it has passed."""
        try:
            status = self._process.wait(max(0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = f"still running after {BOUND} s"
            os.killpg(self._process.pid, signal.SIGKILL)  # with the processes it started
            self._process.wait()
        self._output.seek(0)
        print(f"-- {self.mode}\n{self._output.read()}", end="", flush=True)
        self._output.close()
        if status != 0:
            print(f"FAILED  {self.mode}: status {status}", flush=True)
        return status == 0


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start_ranks(backend, hook, haul, **variables):
    variables.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
                     GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    return [Run(f"{backend}, rank {rank}", hook, haul, RANK=str(rank), LOCAL_RANK=str(rank),
                **variables) for rank in range(2)]


def start_nccl(torch, hook, haul):
    """Over the plugin alone: GPUs of one host would use NVLink, PCIe or shared memory."""
    plugin = os.environ.get("HAUL_NCCL", "")
    if torch.cuda.device_count() < 2:
        print("skipped two ranks of NCCL: this host has one GPU")
    elif not torch.distributed.is_nccl_available() or not os.path.exists(plugin):
        print("skipped two ranks of NCCL: this PyTorch has no NCCL, or HAUL_NCCL names no plugin")
    else:
        return start_ranks("nccl", hook, haul, NCCL_NET_PLUGIN=plugin, NCCL_P2P_DISABLE="1",
                           NCCL_SHM_DISABLE="1")
    return []


def main(hook, haul):
    torch = import_torch()
    print(f"torch {torch.__version__} for CUDA {torch.version.cuda}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = [Run(mode, hook, haul, HAUL_CUDAHOOK_LISTEN=f"unix://{folder}/{mode}")
                for mode in ("allocator", "preload")]
        runs.append(Run("processes", hook, haul))
        runs.append(Run("expandable segments", hook, haul,
                        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"))
        runs.append(Run("cudaMallocAsync", hook, haul,
                        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"))
        runs += start_ranks("gloo", hook, haul)
        runs += start_nccl(torch, hook, haul)
        until = time.monotonic() + BOUND
        passed = [run.end(until) for run in runs]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    if len(sys.argv) == 5 and sys.argv[1] == "--inside":
        sys.exit(inside(*sys.argv[2:]))
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*(os.path.abspath(path) for path in sys.argv[1:])))
