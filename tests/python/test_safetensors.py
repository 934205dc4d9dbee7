# SPDX-License-Identifier: MIT
"""haul.safetensors: files of the format, checked and written into another process's memory."""

import json
import os
import pathlib
import pty
import random
import struct
import subprocess
import sys
import tempfile

import haul
import support
from haul import READ, WRITE, Code, safetensors

PATIENCE = support.PATIENCE


def file_of(header, data=b""):
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


class Case(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "model.safetensors")
        self.node = haul.Node("owner", timeout=PATIENCE)
        self.other = haul.Node("other", timeout=PATIENCE)
        self.addCleanup(self.other.close)
        self.addCleanup(self.node.close)

    def region(self, length, rights=READ | WRITE, name="weights"):
        region = self.node.alloc(length)
        region.publish(name, rights)
        self.addCleanup(region.close)
        if not self.node.addresses:
            self.node.listen("tcp://127.0.0.1:0")
        return region

    @property
    def target(self):
        return f"{self.node.addresses[0]}/weights"


class Headers(Case):
    def both(self, content):
        """What the file and a region with its bytes raise: the same."""
        self.path.write_bytes(content)
        with open(self.path, "rb") as file, self.assertRaises(safetensors.Refused) as by_file:
            safetensors.entries(file)
        with self.node.alloc(max(len(content), 1)) as region:
            memoryview(region)[: len(content)] = content
            with self.assertRaises(safetensors.Refused) as by_region:
                safetensors.tensors(region)
        if content:
            self.assertEqual(str(by_file.exception), str(by_region.exception))
        return by_file.exception

    def test_damaged_files(self):
        data = bytes(8)
        twice = b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2)
        for content, text in (
            (b"", "shorter"),
            (b"1234567", "shorter"),
            (struct.pack("<Q", (1 << 64) - 1) + data, "header would have"),
            (struct.pack("<Q", 1 << 63) + data, "header would have"),
            (struct.pack("<Q", 9) + data, "header would have 9"),
            (file_of(b"{"), "no JSON"),
            (file_of(b"\xff"), "no JSON"),
            (file_of(b"[" * 100_000), "no JSON"),
            (file_of(b'{"a": %s}' % (b"9" * 5000)), "no JSON"),
            (file_of([]), "no object"),
            (file_of(twice, data), "twice"),
            (file_of({"a": 7}, data), "'a': it has no type"),
            (file_of({"a": entry(7)}, data), "'a': it has no type"),
            (file_of({"a": entry(shape=(-2,))}, data), "no shape"),
            (file_of({"a": entry(shape=(True,))}, data), "no shape"),
            (file_of({"a": entry(shape=(2.0,))}, data), "no shape"),
            (file_of({"a": entry(offsets=(0, 1 << 70))}, data), "no shape"),
            (file_of({"a": entry(offsets=(0, 8, 8))}, data), "no shape"),
            (file_of({"a": entry(offsets=(8, 0))}, data), "exceed"),
            (file_of({"a": entry(offsets=(1, 9))}, data), "exceed"),
            (file_of({"a": entry(offsets=(1 << 62, (1 << 62) + 8))}, data), "exceed"),
            (file_of({"a": entry(shape=(1 << 62,))}, data), "do not agree"),
            (file_of({"a": entry(shape=(1 << 62, 1 << 62))}, data), "do not agree"),
            (file_of({"a": entry(shape=(1,))}, data), "do not agree"),
        ):
            with self.subTest(text=text, content=content[:80]):
                error = self.both(content)
                self.assertIsInstance(error, safetensors.Damaged)
                self.assertIn(text, str(error))

    def test_other_types_and_shapes(self):
        for dtype in ("F4", "F6_E2M3", "F33", "f32"):
            error = self.both(file_of({"a": entry(dtype)}, bytes(8)))
            self.assertEqual(str(error), f"tensor 'a': haul does not support type {dtype!r}")
            self.assertNotIsInstance(error, safetensors.Damaged)
        error = self.both(file_of({"a": entry(shape=(1,) * 100_000)}, bytes(8)))
        self.assertIn("8 dimensions", str(error))

    def test_a_file_that_shrinks(self):
        """Its length is known before its header is read."""
        self.path.write_bytes(file_of({"a": entry()}, bytes(8)))
        with open(self.path, "rb+") as file:
            before = os.pread

            def shrink(descriptor, length, offset):
                os.pread = before
                file.truncate(4)
                return before(descriptor, length, offset)

            os.pread = shrink
            self.addCleanup(setattr, os, "pread", before)
            with self.assertRaisesRegex(safetensors.Damaged, "became shorter"):
                safetensors.entries(file)

    def test_random_damage(self):
        """Whatever bytes are changed, a file is refused, or its tensors lie within it."""
        chance = random.Random(1)
        header = {"a": entry(), "b": entry("U8", (2, 3), (8, 14)), "c": entry("F64", (), (14, 22))}
        whole = file_of(header | {"__metadata__": {"k": "v"}}, bytes(22))
        refused = 0
        for _ in range(3000):
            content = bytearray(whole)
            for _ in range(chance.choice((1, 1, 2, 8))):
                at = chance.choice((chance.randrange(8), chance.randrange(len(content))))
                content[at] = chance.choice((0, 255, *b'0123456789-"{}[],:eE.', chance.randrange(256)))
            del content[chance.choice((len(content), chance.randrange(len(content)))) :]
            try:
                found = safetensors._entries_of(
                    lambda offset, length: bytes(content[offset : offset + length]), len(content)
                )
            except safetensors.Refused:
                refused += 1
                continue
            for one in found.values():
                self.assertTrue(0 <= one.offset <= one.offset + one.nbytes <= len(content))
        self.assertTrue(1000 < refused < 3000, refused)

    def test_every_type(self):
        header, data = {}, b""
        for dtype, name in safetensors.TYPES.items():
            size = safetensors._SIZES[name]
            header[dtype] = entry(dtype, (2, 1), (len(data), len(data) + 2 * size))
            data += random.Random(dtype).randbytes(2 * size)
        content = file_of(header | {"__metadata__": {"format": "pt"}}, data)
        with self.node.alloc(len(content) + 100) as region:  # a longer one will do
            memoryview(region)[: len(content)] = content
            tensors = safetensors.tensors(region)
            start = len(content) - len(data)
            self.assertEqual(list(tensors), list(safetensors.TYPES))
            for dtype, tensor in tensors.items():
                begin, end = header[dtype]["data_offsets"]
                self.assertEqual(tensor.layout[:2], (safetensors.TYPES[dtype], (2, 1)))
                self.assertEqual((tensor.offset, tensor.nbytes), (start + begin, end - begin))
            del tensor, tensors


class Writes(Case):
    def model(self, size=1 << 20):
        data = random.Random(size).randbytes(size)
        header = {"a": entry("U8", (size - 4,), (0, size - 4)), "b": entry("F16", (2,), (size - 4, size))}
        self.path.write_bytes(file_of(header, data))
        return self.path.read_bytes()

    def test_into_another_node(self):
        content = self.model()
        region = self.region(len(content) + 4096)
        found = safetensors.write(self.path, self.target, node=self.other)
        self.assertEqual(bytes(region.bytes()[: len(content)]), content)
        self.assertEqual(found["b"][:2], ("float16", (2,)))
        self.assertEqual(list(safetensors.tensors(region)), ["a", "b"])

    def test_in_several_transfers(self):
        content = self.model(300_000)
        region = self.region(len(content))
        before = safetensors._CHUNK
        safetensors._CHUNK = 4096
        self.addCleanup(setattr, safetensors, "_CHUNK", before)
        safetensors.write(self.path, self.target, node=self.other)
        self.assertEqual(bytes(region), content)

    def test_nothing_is_written_of_a_damaged_file(self):
        region = self.region(4096)
        memoryview(region)[:] = bytes(4096)
        self.path.write_bytes(file_of({"a": entry(offsets=(0, 9))}, b"x" * 8))
        with self.assertRaises(safetensors.Damaged):
            safetensors.write(self.path, self.target, node=self.other)
        self.assertEqual(bytes(region), bytes(4096))

    def test_refused(self):
        content = self.model()
        write = safetensors.write
        self.region(len(content) - 1)
        error = self.fails(Code.ERANGE, write, self.path, self.target, node=self.other)
        self.assertIn(str(len(content)), error.text)
        self.region(len(content), READ, "read-only")
        target = self.target.replace("weights", "read-only")
        self.fails(Code.EACCESS, write, self.path, target, node=self.other)
        self.fails(Code.ENAME, write, self.path, self.target + "s", node=self.other)
        self.assertRaises(FileNotFoundError, write, "/nowhere", self.target, node=self.other)
        self.assertRaises(ValueError, write, self.path, "nowhere", node=self.other)

    def run_command(self, *arguments, stderr=subprocess.PIPE):
        return subprocess.run(
            [sys.executable, "-m", "haul.safetensors", *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            timeout=PATIENCE,
        )

    def test_the_command(self):
        content = self.model()
        region = self.region(len(content))
        ended = self.run_command(self.path, self.target)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))  # no bar: no terminal
        self.assertEqual(ended.stdout, f"wrote 2 tensors, {1 << 20} bytes, verified\n")
        self.assertEqual(bytes(region), content)
        self.assertEqual(self.run_command(self.path, self.target, "--quiet").stdout, "")
        header = b'{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'
        self.path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        self.assertEqual(self.run_command(self.path, self.target).stdout, "wrote 1 tensor, 8 bytes, verified\n")
        ended = self.run_command(self.path, "tcp://127.0.0.1:1/weights")
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stderr, r"^haul\.safetensors: haul_peer_connect: .*\(hint: .*\)\n$")
        self.path.write_bytes(b"damaged!")
        ended = self.run_command(self.path, self.target)
        self.assertRegex(ended.stderr, r"^haul\.safetensors: the file is damaged: ")
        self.assertEqual(self.run_command().returncode, 2)

    def test_the_bar_on_a_terminal(self):
        content = self.model()
        self.region(len(content))
        for arguments, shown in (((), True), (("--quiet",), False)):
            ours, theirs = pty.openpty()
            try:
                ended = self.run_command(self.path, self.target, *arguments, stderr=theirs)
                os.close(theirs)
                theirs = -1
                said = self.drain(ours)
            finally:
                os.close(ours)
                if theirs >= 0:
                    os.close(theirs)
            self.assertEqual(ended.returncode, 0)
            self.assertEqual(b"model.safetensors [########################] 100%" in said, shown)
            self.assertEqual(said.endswith(b"\r\x1b[K"), shown)  # the line is cleared

    @staticmethod
    def drain(descriptor):
        said = b""
        try:
            while part := os.read(descriptor, 4096):
                said += part
        except OSError:  # EIO: the other end is closed
            pass
        return said


if __name__ == "__main__":
    support.main()
