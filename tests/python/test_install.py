# SPDX-License-Identifier: MIT
"""The folder of the package as a wheel has it: library, command, modules and plugins inside, wherever it lies.

tests/python/wheel.sh builds and installs the wheel itself.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support

USE = """
import haul
assert haul.__file__.startswith({target!r}), haul.__file__
with haul.Node() as node, node.alloc(4096) as region:
    view = memoryview(region)
    view[:5] = b"hello"
    print(haul.__version__, bytes(view[:5]).decode())
    del view
maps = open("/proc/self/maps").read()
for library in ("libhaul.so.0", "libhaul-services.so.0"):
    assert {target!r} + "/haul/lib/" + library in maps, maps
"""


@unittest.skipIf("HAUL_TEST_SANITIZED" in os.environ, "the installed package has no sanitizer")
class Install(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.target = self.folder / "target"
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
        }
        for component in ("runtime", "python"):
            build = os.environ["HAUL_BUILD"]
            self.run_in("cmake", "--install", build, "--component", component,
                        "--prefix", self.folder / "first" / "haul")  # fmt: skip
        (self.folder / "first").rename(self.target)

    def run_in(self, *command, status=0, **environment):
        ended = subprocess.run(
            command,
            env={**self.environment, **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(ended.returncode, status, ended.stdout)
        return ended.stdout

    def python(self, *arguments, **options):
        return self.run_in(sys.executable, *arguments, PYTHONPATH=str(self.target), **options)

    def test_import(self):
        installed = {path.name for path in (self.target / "haul").iterdir()}
        self.assertTrue({"py.typed", "_haul.pyi", "_haul.abi3.so"} <= installed, installed)
        said = self.python("-c", USE.format(target=str(self.target)))
        self.assertTrue(said.endswith(" hello\n"), said)

    def test_command(self):
        self.assertRegex(self.python("-m", "haul", "version"), r"^haul \S+ \(libhaul \S+\)$")
        self.assertIn("usage: haul", self.python("-m", "haul", status=2))

    def test_without_the_command(self):
        (self.target / "haul/bin/haul").unlink()
        said = self.python("-m", "haul", "version", status=1, PATH="/nowhere")
        self.assertIn("hint: install the command haul", said)

    def test_directory(self):
        if not (self.target / "haul/lib/haul/libhaul-directory.so").exists():
            self.skipTest("haul is built without directories")
        said = self.python("-m", "haul", "ls", "etcd://127.0.0.1:1/x", status=1)
        self.assertIn("check that etcd listens there", said)

    def test_files(self):
        """The library finds its module for files, or says what is missing."""
        read = "import haul; n = haul.Node(); print(haul.File(open(haul.__file__)).read(n.alloc(9)))"
        self.assertIn("bytes=9", self.python("-c", read))
        (self.target / "haul/lib/haul/libhaul-file.so").unlink()
        self.assertIn("haul.NotSupported", self.python("-c", read, status=1))

    def test_cache(self):
        """The library of services is beside the one that it needs."""
        store = "import haul.cache as c; s = c.Store(haul.Node(), 'blocks', 8192); print(s.stat().memory.capacity)"
        self.assertEqual(self.python("-c", f"import haul; {store}"), "8192\n")

    def test_plugin_of_nixl(self):
        plugin = self.target / "haul/lib/haul/nixl/libplugin_HAUL.so"
        if not plugin.exists():
            self.skipTest("haul is built without the plugin for NIXL")
        said = self.python("-c", "import haul.nixl; print(haul.nixl.plugin())")
        self.assertEqual(said, f"{plugin}\n")


if __name__ == "__main__":
    support.main()
