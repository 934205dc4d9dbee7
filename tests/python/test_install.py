# SPDX-License-Identifier: MIT
"""The steps of a user: `make install`, `pip install .`, import; without network, outside the tree."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import support

PACKAGE = support.REPOSITORY / "integrations/python"
USE = """
import haul
assert haul.__file__.startswith({target!r}), haul.__file__
with haul.Node() as node, node.alloc(4096) as region:
    view = memoryview(region)
    view[:5] = b"hello"
    print(haul.__version__, bytes(view[:5]).decode())
    del view
"""


def has_bdist_wheel():
    """Of setuptools from 70.1 on; importing setuptools would patch distutils."""
    setuptools = importlib.util.find_spec("setuptools")
    return pathlib.Path(setuptools.origin).with_name("command").joinpath("bdist_wheel.py").exists()


@unittest.skipIf("HAUL_TEST_SANITIZED" in os.environ, "the installed package has no sanitizer")
class Install(support.Case):
    def setUp(self):
        for name in ("pip", "setuptools", "wheel"):
            if importlib.util.find_spec(name) or (name == "wheel" and has_bdist_wheel()):
                continue
            self.skipTest(f"{sys.executable} has no {name}: sudo apt-get install python3-{name}")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
        }

    def run_quietly(self, *command, **environment):
        ended = subprocess.run(
            command,
            env={**self.environment, **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(ended.returncode, 0, ended.stdout)
        return ended.stdout

    def pip(self, **environment):
        """Builds in a copy, as pip writes into the sources."""
        source, target = self.folder / "source", self.folder / "target"
        shutil.copytree(
            PACKAGE, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
        )
        command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
        offline = {
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_CACHE_DIR": "1",
        }
        return subprocess.run(
            [*command, "--target", target, source],
            env={**self.environment, **offline, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def test_without_the_library(self):
        nothing = str(self.folder)
        ended = self.pip(PKG_CONFIG_LIBDIR=nothing, PKG_CONFIG_PATH=nothing)
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("HAUL_PREFIX=", ended.stdout)

    def test_without_wheel(self):
        if has_bdist_wheel():
            self.skipTest("this setuptools builds wheels itself")
        (self.folder / "sitecustomize.py").write_text("import sys\nsys.modules['wheel'] = None\n")
        ended = self.pip(PYTHONPATH=str(self.folder))
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("needs wheel: sudo apt-get install python3-wheel", ended.stdout)

    def test_import(self):
        prefix, target = self.folder / "prefix", self.folder / "target"
        self.run_quietly("cmake", "--install", os.environ["HAUL_BUILD"], "--prefix", prefix)
        ended = self.pip(HAUL_PREFIX=str(prefix))
        self.assertEqual(ended.returncode, 0, ended.stdout)
        installed = {path.name for path in (target / "haul").iterdir()}
        self.assertTrue({"py.typed", "_haul.pyi", "_haul.abi3.so"} <= installed, installed)
        self.assertNotIn("_haul", installed)
        use = USE.format(target=str(target))
        said = self.run_quietly(sys.executable, "-c", use, PYTHONPATH=str(target))
        self.assertTrue(said.endswith(" hello\n"), said)


if __name__ == "__main__":
    support.main()
