#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mooncake Store over TCP as a peer of the cache, by the Python API of its wheel (PYTHONPATH): its
master, a process with the memory, and this one, a client with registered memory.

mooncake_store.py MASTER OPERATION SIZE COUNT SECONDS  get or put of COUNT blocks of SIZE bytes a call;
                                                       prints microseconds a call (median)
"""
import ctypes
import mmap
import os
import socket
import statistics
import subprocess
import sys
import time

from mooncake.store import MooncakeDistributedStore


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def parse_size(text):
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]] if text[-1] in "KMG" else int(text)


def works(status, what):
    if status < 0:
        sys.exit(f"mooncake store: {what}: {status}")


def open_store(master, segment):
    store = MooncakeDistributedStore()
    for _ in range(50):  # until the master listens
        status = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, 64 << 20, "tcp", "", master)
        if status == 0:
            return store
        time.sleep(0.2)
    sys.exit(f"mooncake store: setup: {status}")


def serve(master, segment):
    store = open_store(master, int(segment))
    print("ready", flush=True)
    sys.stdin.read()
    del store
    os._exit(0)


def measure(master, operation, size, count, seconds):
    store = open_store(master, 0)
    total = size * count
    memory = mmap.mmap(-1, total, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 2, total)
    works(store.register_buffer(address, total), "register")
    places, sizes = [address + i * size for i in range(count)], [size] * count

    def put(number):
        # An existing key is not replaced, so each put has new ones.
        keys = [f"block-{number}-{i}" for i in range(count)]
        works(min(store.batch_put_from(keys, places, sizes)), "put")
        return keys

    keys = put(0)
    times, number, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        began = time.monotonic()
        if operation == "put":
            put(number)
        else:
            works(min(store.batch_get_into(keys, places, sizes)), "get")
        times.append((time.monotonic() - began) * 1e6)
    print(f"{statistics.median(times):.2f}", flush=True)


def main(arguments):
    if arguments[:1] == ["serve"]:
        serve(*arguments[1:])
    if len(arguments) != 5:
        sys.exit("usage: mooncake_store.py MASTER get|put SIZE COUNT SECONDS")
    binary, operation, size, count, seconds = arguments
    port = free_port()
    address = f"127.0.0.1:{port}"
    master = subprocess.Popen([binary, f"--rpc_port={port}", f"--metrics_port={free_port()}"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = subprocess.Popen([sys.executable, __file__, "serve", address, str(2 << 30)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in server.stdout:  # the library logs there too
        if line.strip() == "ready":
            break
    try:
        measure(address, operation, parse_size(size), int(count), float(seconds))
    finally:
        server.kill()
        master.kill()
        server.wait()
        master.wait()
    os._exit(0)  # without the library's destructors


main(sys.argv[1:])
