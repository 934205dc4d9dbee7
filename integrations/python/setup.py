# SPDX-License-Identifier: MIT
"""Builds the extension against the libhaul that pkg-config finds.

HAUL_PREFIX names the prefix of `make install PREFIX=...` if the system does not search it. The
extension then also finds the library at run time.
"""

import glob
import importlib.util
import os
import shlex
import subprocess
import sys

from setuptools import Extension, setup


def need_wheel():
    """Exits with a hint; setuptools would only report "invalid command 'bdist_wheel'"."""
    if not any(map(importlib.util.find_spec, ("setuptools.command.bdist_wheel", "wheel"))):
        sys.exit(
            "haul: setuptools before 70.1 needs wheel: "
            "sudo apt-get install python3-wheel, or pip install wheel"
        )


def pkg_config(*options):
    environment = dict(os.environ)
    prefix = environment.get("HAUL_PREFIX")
    if prefix:
        found = glob.glob(os.path.join(prefix, "lib*", "**", "pkgconfig"), recursive=True)
        environment["PKG_CONFIG_PATH"] = ":".join(
            [*found, environment.get("PKG_CONFIG_PATH", "")]
        ).rstrip(":")
    try:
        return subprocess.run(
            ["pkg-config", *options, "haul"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.strip()
    except FileNotFoundError:
        sys.exit("haul: pkg-config is missing: sudo apt-get install pkg-config")
    except subprocess.CalledProcessError:
        sys.exit(
            "haul: pkg-config does not find the C library. Install it (make install), "
            "or name its prefix: HAUL_PREFIX=/folder pip install ."
        )


need_wheel()
folder = pkg_config("--variable=libdir")
os.chdir(os.path.dirname(os.path.abspath(__file__)))
setup(
    version=pkg_config("--modversion"),
    ext_modules=[
        Extension(
            "haul._haul",
            sources=sorted(glob.glob("haul/_haul/*.c")),
            depends=sorted(glob.glob("haul/_haul/*.h")),
            define_macros=[("_GNU_SOURCE", None)],
            extra_compile_args=["-std=gnu11", *shlex.split(pkg_config("--cflags"))],
            extra_link_args=shlex.split(pkg_config("--libs")),
            runtime_library_dirs=[os.path.realpath(folder)] if "HAUL_PREFIX" in os.environ else [],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
