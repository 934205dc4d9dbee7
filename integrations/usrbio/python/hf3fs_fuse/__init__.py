# SPDX-License-Identifier: MIT
"""USRBIO for Python, with the names that programs for 3FS import."""
