# SPDX-License-Identifier: MIT
"""Reads a safetensors file below a mount by fastsafetensor-3fs-reader, and compares all bytes.

safetensors.py MOUNT, with FASTSAFETENSORS_BACKEND set."""

import ctypes
import json
import os
import random
import sys

import fastsafetensor_3fs_reader as reader_module


def write_file(path, data):
    header = json.dumps({"x": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}})
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header.encode() + data)
    return header


def main():
    mount = sys.argv[1]
    path = os.path.join(mount, "file.safetensors")
    data = random.Random(1).randbytes(5_000_003)
    header = write_file(path, data)
    assert reader_module.get_backend() == os.environ["FASTSAFETENSORS_BACKEND"]
    reader = reader_module.ThreeFSFileReader(mount_point=mount, buffer_size=1 << 20)
    headers = reader.read_headers_batch([path])
    assert headers[path] == (header, 8 + len(header), os.stat(path).st_size), headers
    place = ctypes.create_string_buffer(len(data))
    got = reader.read_chunked(path, ctypes.addressof(place), headers[path][1], len(data))
    assert got == len(data), got
    assert place.raw == data
    reader.close()


main()
