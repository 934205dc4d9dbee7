# SPDX-License-Identifier: MIT
"""Handles that several threads use and close at once. A library that is preloaded (holding.c) makes
calls as slow as each test needs."""

import contextlib
import ctypes
import threading
import time
import unittest

import haul
import support

holding = ctypes.CDLL(None)


def setUpModule():
    if not hasattr(holding, "holding_set"):
        raise unittest.SkipTest("haul-python-holding.so is not preloaded; ctest does")


def begun(call):
    return holding.holding_begun(call.encode())


def ended(call):
    return holding.holding_ended(call.encode())


@contextlib.contextmanager
def held(call):
    """Within it the call does not return."""
    holding.holding_set(call.encode(), True)
    try:
        yield
    finally:
        holding.holding_set(call.encode(), False)


class Threads(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)

    def start(self, run, *args):
        thread = threading.Thread(target=run, args=args, daemon=True)
        thread.start()
        self.addCleanup(self.join, thread)
        return thread

    def start_held(self, call, run, *args):
        """A thread that has come to the call."""
        before = begun(call)
        thread = self.start(run, *args)
        until = time.monotonic() + support.PATIENCE
        while begun(call) == before and time.monotonic() < until:
            time.sleep(0.001)
        self.assertEqual(begun(call), before + 1)
        return thread

    def join(self, thread):
        thread.join(support.PATIENCE)
        self.assertFalse(thread.is_alive())


class Wrapped(Threads):
    """What is wrapped stays until its region's release has returned."""

    def setUp(self):
        super().setUp()
        self.data = bytearray(4096)
        self.region = self.node.wrap(self.data)

    def is_kept(self):
        with self.assertRaises(BufferError):
            self.data.append(1)

    def test_two_close(self):
        with held("haul_region_release"):
            first = self.start_held("haul_region_release", self.region.close)
            second = self.start(self.region.close)
            second.join(0.2)
            self.is_kept()
        self.join(first)
        self.join(second)
        self.data.append(1)
        self.assertEqual(begun("haul_region_release"), ended("haul_region_release"))

    def test_a_close_during_the_release_by_the_last_view(self):
        view = memoryview(self.region)
        with self.assertRaises(ZeroDivisionError), self.region:
            raise ZeroDivisionError
        with held("haul_region_release"):
            first = self.start_held("haul_region_release", view.release)
            second = self.start(self.region.close)
            second.join(0.2)
            self.is_kept()
        self.join(first)
        self.join(second)
        self.data.append(1)

    def test_a_close_that_does_not_wait_for_ever(self):
        with held("haul_region_release"):
            first = self.start_held("haul_region_release", self.region.close)
            self.region.close()
            self.is_kept()
        self.join(first)
        self.data.append(1)

    def test_a_call_that_outlasts_the_close(self):
        self.region.publish("r")
        with held("haul_region_unpublish"):
            call = self.start_held("haul_region_unpublish", self.region.unpublish, "r")
            self.region.close()
            self.is_kept()
        self.join(call)
        self.data.append(1)


if __name__ == "__main__":
    support.main()
