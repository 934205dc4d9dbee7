# SPDX-License-Identifier: MIT
"""The version is haul's."""

import pathlib
import re

from setuptools import setup

header = pathlib.Path(__file__).resolve().parents[3] / "include/haul/haul.h"
setup(version=".".join(re.findall(r"^#define HAUL_VERSION_\w+ (\d+)", header.read_text(), re.M)))
