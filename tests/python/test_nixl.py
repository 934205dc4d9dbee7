# SPDX-License-Identifier: MIT
"""`python -m haul.nixl`: the folder for NIXL_PLUGIN_DIR, of a wheel that is made up."""

import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import support
from haul import nixl

PROCESSES = 8


def make_folders(barrier, roots, plugins, plugin):
    """A child: every folder at the same time as the others."""
    for root in roots:
        barrier.wait(support.PATIENCE)
        nixl.make_folder(root, plugins, plugin)


class Folder(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.plugin = self.folder / "libplugin_HAUL.so"
        self.plugin.touch()

    def add_wheel(self, package, version, *plugins):
        plugin_folder = self.folder / "site" / f".{package}.mesonpy.libs" / "plugins"
        plugin_folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "site" / f"{package}-{version}.dist-info").mkdir()
        for name in plugins:
            (plugin_folder / name).touch()
        (plugin_folder.parent / "libnixl.so").touch()
        return plugin_folder

    def run_module(self, *options):
        path = os.pathsep.join([os.environ["PYTHONPATH"], str(self.folder / "site")])
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "HAUL_NIXL_PLUGIN": str(self.plugin),
        }
        return subprocess.run(
            [sys.executable, "-m", "haul.nixl", *options],
            env=environment,
            capture_output=True,
            text=True,
        )

    def test_links(self):
        plugins = self.add_wheel("nixl_cu12", "1.5.1", "libplugin_UCX.so", "libplugin_HAUL.so")
        for _ in range(2):
            ended = self.run_module("--no-check")
            self.assertEqual(ended.returncode, 0, ended.stderr)
            folder = pathlib.Path(ended.stdout.strip())
            root = self.folder / "cache/haul/nixl/nixl_cu12-1.5.1"
            self.assertEqual(folder, root / ".nixl_cu12.mesonpy.libs/plugins")
            library = folder.parent / "libnixl.so"
            self.assertEqual(library.resolve(), (plugins.parent / "libnixl.so").resolve())
            self.assertEqual((root / "nixl_cu12.libs").readlink().name, "nixl_cu12.libs")
            found = {link.name: link.resolve() for link in folder.iterdir()}
            self.assertEqual(
                found,
                {
                    "libplugin_UCX.so": (plugins / "libplugin_UCX.so").resolve(),
                    "libplugin_HAUL.so": self.plugin.resolve(),
                },
            )
            (folder / "libplugin_OLD.so").symlink_to("/nowhere")

    def test_at_once(self):
        names = [f"libplugin_{i}.so" for i in range(50)]
        plugins = self.add_wheel("nixl_cu12", "1.5.1", *names)
        roots = [str(self.folder / f"root{i}") for i in range(10)]
        fork = multiprocessing.get_context("fork")
        given = (fork.Barrier(PROCESSES), roots, str(plugins), str(self.plugin))
        children = [fork.Process(target=make_folders, args=given) for _ in range(PROCESSES)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        self.assertEqual([child.exitcode for child in children], [0] * PROCESSES)
        for root in roots:
            found = os.listdir(os.path.join(root, ".nixl_cu12.mesonpy.libs", "plugins"))
            self.assertEqual(sorted(found), sorted([*names, self.plugin.name]))

    def test_refusals(self):
        ended = self.run_module("--no-check")
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("no wheel of NIXL", ended.stderr)
        self.add_wheel("nixl_cu12", "1.5.1")
        self.add_wheel("nixl_cu13", "1.5.1")
        ended = self.run_module("--no-check")
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("--wheel nixl_cu12", ended.stderr)
        self.assertEqual(self.run_module("--no-check", "--wheel", "nixl_cu13").returncode, 0)
        ended = self.run_module("--wheel", "nixl_cu13")  # it has no module
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.plugin.unlink()
        ended = self.run_module("--no-check", "--wheel", "nixl_cu13")
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("C++20", ended.stderr)


if __name__ == "__main__":
    support.main()
