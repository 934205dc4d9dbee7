# SPDX-License-Identifier: MIT
"""The programs in examples/."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import support

EXAMPLES = support.REPOSITORY / "examples"


def run(program, *arguments):
    """Without PYTHONUNBUFFERED, with which the lines of two processes mix."""
    return subprocess.run(
        [sys.executable, EXAMPLES / program, *arguments],
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=support.PATIENCE * 2,
    )


def run_changed(program, what, by):
    """Runs a copy of the example with other text."""
    source = (EXAMPLES / program).read_text()
    assert what in source
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, program)
        copy.write_text(source.replace(what, by))
        return run(copy)


def safetensors(header, data=b""):
    if not isinstance(header, bytes):
        header = json.dumps(header).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


class KvBlocks(support.Case):
    def setUp(self):
        support.module("numpy")

    def test_failures_are_reported(self):
        """Even while the prefiller still has arrays of its memory."""
        ended = run_changed("hand_kv_block.py", "haul.READ | haul.WRITE", "haul.READ")
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("it is published without the right to write", ended.stdout)
        self.assertIn("the prefiller has left", ended.stdout)
        self.assertNotIn("Traceback", ended.stdout)

    def test_all_blocks_arrive(self):
        ended = run("hand_kv_block.py")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertEqual(ended.stdout.count("is complete"), 3, ended.stdout)
        self.assertIn("path map", ended.stdout)


class Cached(support.Case):
    def setUp(self):
        support.module("numpy")

    def test_a_known_prefix_is_not_computed_again(self):
        ended = run("reuse_prefix.py")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertEqual(
            ended.stdout,
            "worker: 0 blocks from the store, 6 computed\n"
            "worker: 4 blocks from the store, 3 computed\n"
            "worker: 6 blocks from the store, 0 computed\n"
            "worker: the store has 9 blocks\n"
            "worker: all blocks are right\n",
        )

    def test_a_store_that_has_no_room(self):
        """Then all blocks are computed."""
        ended = run_changed("reuse_prefix.py", "256 << 20", "4096")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertEqual(ended.stdout.count("0 blocks from the store"), 3)
        self.assertIn("no room", ended.stdout)
        self.assertIn("the store has 0 blocks", ended.stdout)


class Resharded(support.Case):
    def setUp(self):
        support.module("numpy")

    def test_every_rank_gets_its_rows(self):
        ended = run("reshard_weights.py")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("to 3  196608  196608  393216\n", ended.stdout)
        self.assertEqual(ended.stdout.count("393216 bytes, rows from"), 4)
        self.assertEqual(ended.stdout.count("are right"), 4)

    def test_failures_are_reported(self):
        ended = run_changed("reshard_weights.py", 'publish("weights")', 'publish("others")')
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("the peer publishes no region of this name", ended.stdout)
        self.assertNotIn("Traceback", ended.stdout)


class Safetensors(support.Case):
    def setUp(self):
        support.module("torch")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "model.safetensors")

    def load(self, content):
        with open(self.path, "wb") as file:
            file.write(content)
        return run("load_safetensors.py", self.path)

    def test_damaged_files(self):
        """python.safetensors has all ways of damage."""
        for content, text in (
            (b"", "shorter"),
            (struct.pack("<Q", 9) + bytes(8), "header would have 9"),
            (safetensors({"a": entry(shape=(1 << 62,))}, bytes(8)), "do not agree"),
        ):
            with self.subTest(text=text):
                ended = self.load(content)
                self.assertNotEqual(ended.returncode, 0)
                self.assertIn("damaged", ended.stdout)
                self.assertIn(text, ended.stdout)
                self.assertNotIn("Traceback", ended.stdout)
                self.assertNotIn("written", ended.stdout)

    def test_unsupported_types(self):
        ended = self.load(safetensors({"a": entry("F4")}, bytes(8)))
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(ended.stdout, "tensor 'a': haul does not support type 'F4'\n")

    def test_every_other_type(self):
        """Each with two elements of 1, if the format has a 1."""
        half, wide = b"\x00\x3c", struct.pack("<2d", 1, 1)
        types = {
            "BOOL": b"\1" * 2, "U8": b"\1" * 2, "U16": struct.pack("<2H", 1, 1),
            "U32": struct.pack("<2I", 1, 1), "U64": struct.pack("<2Q", 1, 1), "I8": b"\1" * 2,
            "I16": struct.pack("<2h", 1, 1), "I32": struct.pack("<2i", 1, 1), "F16": half * 2,
            "F8_E4M3": b"\x38" * 2, "F8_E4M3FNUZ": b"\x40" * 2, "F8_E8M0": b"\x7f" * 2,
            "F8_E5M2": b"\x3c" * 2, "F8_E5M2FNUZ": b"\x40" * 2, "F64": wide,
            "C64": struct.pack("<4f", 1, 0, 1, 0),
        }  # fmt: skip
        header, data = {}, b""
        for dtype, content in types.items():
            header[dtype] = entry(dtype, (2,), (len(data), len(data) + len(content)))
            data += content
        ended = self.load(safetensors(header, data))
        self.assertEqual(ended.returncode, 0, ended.stdout)
        lines = [line for line in ended.stdout.splitlines() if line.startswith("worker:")]
        self.assertEqual([line.split()[1] for line in lines], list(types))
        for line in lines:
            self.assertRegex(line, r"  (sum 2|sum 2\+0j|this PyTorch has no such type)$")
        for name in ("BOOL", "C64", "F16"):
            self.assertIn(" sum 2", lines[list(types).index(name)])

    def test_a_whole_file(self):
        parts = (
            ("norm", "F32", (4,), struct.pack("<4f", 1, 2, 3, 4.5)),
            ("embed.weight", "BF16", (3, 2), b"\x80\x3f" * 6),
            ("ids", "I64", (1, 2), struct.pack("<2q", -3, 1 << 40)),
            ("scalar", "F64", (), struct.pack("<d", 0.25)),
            ("big", "F16", (1 << 20,), b"\x00\x3c" * (1 << 20)),
        )
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name, dtype, shape, content in parts:
            header[name] = entry(dtype, shape, (len(data), len(data) + len(content)))
            data += content
        ended = self.load(safetensors(header, data))
        self.assertEqual(ended.returncode, 0, ended.stdout)
        lines = {
            line.split()[1]: line.split()[2:]
            for line in ended.stdout.splitlines()
            if line.startswith("worker:")
        }
        self.assertEqual(lines["norm"], ["float32", "4", "sum", "10.5"])
        self.assertEqual(lines["embed.weight"], ["bfloat16", "3x2", "sum", "6"])
        self.assertEqual(lines["ids"][:2], ["int64", "1x2"])
        self.assertEqual(lines["scalar"][-1], "0.25")
        self.assertEqual(lines["big"][-1], "1.04858e+06")


if __name__ == "__main__":
    support.main()
