# SPDX-License-Identifier: MIT
"""The Python side of USRBIO, by the names that programs for 3FS import."""
