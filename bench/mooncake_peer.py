#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mooncake's transfer engine over TCP as a peer, by the Python API of its wheel (PYTHONPATH).

mooncake_peer.py segments COUNT SIZE SECONDS  writes of COUNT scattered segments each; prints GB/s and
                                         CPU seconds a GB of both ends
mooncake_peer.py first SIZE TIMES             a write of SIZE bytes to a new process, from its name:
                                         prints the median in ms
"""
import ctypes
import mmap
import os
import statistics
import subprocess
import sys
import time

from mooncake.engine import TransferEngine


def parse_size(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]] if text[-1] in "KMG" else int(text)


def works(status, what):
    if status < 0:
        sys.exit(f"mooncake: {what}: {status}")


class End:
    """An engine with registered memory."""

    def __init__(self, length, value):
        self.memory = mmap.mmap(-1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ctypes.memset(self.address, value, length)
        self.engine = TransferEngine()
        works(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "initialize")
        works(self.engine.register_memory(self.address, length), "register")


def serve(length):
    end = End(length, 1)
    print(end.engine.get_rpc_port(), flush=True)
    sys.stdin.read()
    os._exit(0)


class Target:
    """The second process, which ends with its standard input."""

    def __init__(self, length):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "serve", str(length)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = ""
        for line in self.process.stdout:  # the engine logs there too
            if line.strip().isdigit():
                self.name = "127.0.0.1:" + line.strip()
                return
        sys.exit("mooncake: the second process said nothing")

    def end(self):
        self.process.stdin.close()
        self.process.wait()

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def by_segments(count, size, seconds):
    length = count * size
    end, target = End(length, 2), Target(length)
    there = end.engine.get_first_buffer_address(target.name)
    ours = [end.address + i * size for i in range(count)]
    theirs = [there + i * 7919 % count * size for i in range(count)]  # scattered() of common.c
    lengths = [size] * count

    def write():
        works(end.engine.batch_transfer_sync_write(target.name, ours, theirs, lengths), "write")

    write()
    moved = 0
    began, cpu = time.monotonic(), time.process_time() + target.cpu()
    while time.monotonic() < began + seconds:
        write()
        moved += length
    took, cpu = time.monotonic() - began, time.process_time() + target.cpu() - cpu
    print(f"{moved / took / 1e9:.4f} {cpu / moved * 1e9:.3f}", flush=True)
    target.end()


def by_first(size, times):
    end = End(size, 2)
    took = []
    for _ in range(times):
        target = Target(size)
        began = time.monotonic()
        there = end.engine.get_first_buffer_address(target.name)
        works(end.engine.transfer_sync_write(target.name, end.address, there, size), "write")
        took.append((time.monotonic() - began) * 1e3)
        target.end()
    print(f"{statistics.median(took):.4f}", flush=True)


def main(arguments):
    if arguments[:1] == ["serve"]:
        serve(int(arguments[1]))
    elif arguments[:1] == ["segments"]:
        by_segments(int(arguments[1]), parse_size(arguments[2]), float(arguments[3]))
    elif arguments[:1] == ["first"]:
        by_first(parse_size(arguments[1]), int(arguments[2]))
    else:
        sys.exit("usage: mooncake_peer.py segments COUNT SIZE SECONDS | first SIZE TIMES")
    os._exit(0)  # without the engine's destructors


main(sys.argv[1:])
