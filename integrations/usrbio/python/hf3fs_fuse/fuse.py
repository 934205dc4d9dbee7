# SPDX-License-Identifier: MIT
"""Mount points."""

from hf3fs_py_usrbio import extract_mount_point

__all__ = ["get_mount_point"]


def get_mount_point(path):
    """The mount point above `path`; None: its file system does not speak USRBIO."""
    return extract_mount_point(path)
