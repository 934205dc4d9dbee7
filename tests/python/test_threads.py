# SPDX-License-Identifier: MIT
"""Concurrent use and close of handles. A preloaded library (holding.c) delays calls of libhaul."""

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

import haul
import support

holding = ctypes.CDLL(None)


def setUpModule():
    if not hasattr(holding, "holding_set"):
        raise unittest.SkipTest("haul-python-holding.so is not preloaded (hint: run ctest -R python.threads)")


def begun(call):
    return holding.holding_begun(call.encode())


def ended(call):
    return holding.holding_ended(call.encode())


@contextlib.contextmanager
def held(call):
    """Calls do not return within it."""
    holding.holding_set(call.encode(), True)
    try:
        yield
    finally:
        holding.holding_set(call.encode(), False)


class Threads(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)

    def soon(self, condition):
        until = time.monotonic() + support.PATIENCE
        while not condition() and time.monotonic() < until:
            time.sleep(0.001)
        self.assertTrue(condition())

    def start(self, run, *args):
        thread = threading.Thread(target=run, args=args, daemon=True)
        thread.start()
        self.addCleanup(self.join, thread)
        return thread

    def start_held(self, call, run, *args):
        """A thread that has entered the call."""
        before = begun(call)
        thread = self.start(run, *args)
        self.soon(lambda: begun(call) == before + 1)
        return thread

    def join(self, thread):
        thread.join(support.PATIENCE)
        self.assertFalse(thread.is_alive())


class Wrapped(Threads):
    """Wrapped memory stays until the release of its region has returned."""

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


class Nodes(Threads):
    """A node and its objects are released one after the other."""

    def ends(self):
        """Objects of the node, by the call that releases them."""
        region = self.node.alloc(4096)
        region.publish("r")
        peer = self.node.connect(self.node.listen(f"unix://@haul-test-threads-{os.getpid()}"))
        return {"haul_region_release": region, "haul_remote_release": peer.lookup("r")}

    def test_a_node_waits_for_a_release(self):
        for call in ("haul_region_release", "haul_remote_release"):
            with self.subTest(call=call):
                self.node = haul.Node()
                self.addCleanup(self.node.close)
                closes = begun("haul_node_close")
                ends = self.ends()
                with held(call):
                    first = self.start_held(call, ends[call].close)
                    second = self.start(self.node.close)
                    second.join(0.2)
                    self.assertEqual(begun("haul_node_close"), closes)
                self.join(first)
                self.join(second)
                self.assertEqual(ended("haul_node_close"), closes + 1)

    def test_a_slow_release_closes_the_node_itself(self):
        region = self.node.alloc(4096)
        closes = begun("haul_node_close")
        with held("haul_region_release"):
            first = self.start_held("haul_region_release", region.close)
            self.node.close()
            self.assertEqual(begun("haul_node_close"), closes)
        self.join(first)
        self.assertEqual(ended("haul_node_close"), closes + 1)

    def test_garbage_collection_counts_as_a_release(self):
        closes = begun("haul_node_close")
        regions = [self.node.alloc(4096)]
        with held("haul_region_release"):
            first = self.start_held("haul_region_release", regions.clear)
            second = self.start(self.node.close)
            second.join(0.2)
            self.assertEqual(begun("haul_node_close"), closes)
        self.join(first)
        self.join(second)
        self.assertEqual(ended("haul_node_close"), closes + 1)

    def test_a_release_waits_for_the_node(self):
        data = bytearray(4096)
        region = self.node.wrap(data)
        releases = begun("haul_region_release")
        with held("haul_node_close"):
            first = self.start_held("haul_node_close", self.node.close)
            second = self.start(region.close)
            second.join(1.5)
            self.assertEqual(begun("haul_region_release"), releases)
            with self.assertRaises(BufferError):
                data.append(1)
        self.join(first)
        self.join(second)
        self.assertEqual(ended("haul_region_release"), releases + 1)
        data.append(1)

    def test_a_forked_child_does_not_wait(self):
        """The child does not have the thread that closes the node."""
        region = self.node.alloc(4096)
        with held("haul_node_close"):
            first = self.start_held("haul_node_close", self.node.close)
            child = os.fork()
            if child == 0:
                region.close()
                os._exit(0)
            until = time.monotonic() + support.PATIENCE
            status = (0, 0)
            while status[0] == 0 and time.monotonic() < until:
                time.sleep(0.01)
                status = os.waitpid(child, os.WNOHANG)
            if status[0] == 0:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        self.join(first)
        self.assertEqual(status, (child, 0))

    def test_the_interpreter_s_end_does_not_wait(self):
        child = self.child("""
            import threading
            from test_threads import begun, holding
            node = haul.Node()
            region = node.alloc(4096)
            holding.holding_set(b"haul_node_close", True)
            threading.Thread(target=node.close, daemon=True).start()
            while not begun("haul_node_close"):
                pass
        """)
        self.ends_well(child)


class Waits(Threads):
    """A wait looks up from time to time, and finds a transfer that has ended just then."""

    def setUp(self):
        """A transfer to a node that does not respond before it is driven."""
        self.node = haul.Node(liveness=3600)
        self.addCleanup(self.node.close)
        self.server = haul.Node(progress="caller", liveness=3600)
        self.addCleanup(self.server.close)
        self.region = self.server.alloc(4096)
        self.region.publish("r", haul.WRITE)
        address = self.server.listen("tcp://127.0.0.1:0")
        with ThreadPoolExecutor() as pool:
            looked_up = pool.submit(lambda: self.node.connect(address).lookup("r"))
            self.soon(lambda: (self.server.progress(), looked_up.done())[1])
            self.remote = looked_up.result()
        self.transfer = self.remote.write(self.node.alloc(4096), only="tcp", timeout=3600)

    def end_during(self, wait):
        """The result of the wait, which looks up before the transfer ends, and goes on after."""
        with ThreadPoolExecutor() as pool:
            with held("haul_transfer_test"):
                before = begun("haul_transfer_test")
                waited = pool.submit(wait)
                self.soon(lambda: begun("haul_transfer_test") > before)
                self.soon(lambda: (self.server.progress(), self.transfer.report().status == 0)[1])
            return waited.result(support.PATIENCE)

    def test_one(self):
        self.assertIs(self.end_during(lambda: self.transfer.wait(math.inf)), self.transfer)

    def test_any(self):
        waited = self.end_during(lambda: haul.wait_any([self.transfer], timeout=math.inf))
        self.assertIs(waited, self.transfer)

    def test_all(self):
        """The result is that of the transfer that failed, and not a timeout of the wait."""
        failed = self.remote.write(self.node.alloc(4096), only="tcp")
        failed.cancel()
        with self.assertRaises(haul.Canceled):
            self.end_during(lambda: haul.wait_all([self.transfer, failed], timeout=math.inf))

    def test_any_ends_with_one_that_failed(self):
        failed = self.remote.write(self.node.alloc(4096), only="tcp", timeout=0.1)
        self.assertIs(haul.wait_any([self.transfer, failed]), failed)
        self.assertRaises(haul.TimedOut, failed.wait)
        self.assertEqual(repr(failed), "<haul.Transfer, write of 4096 bytes, timed-out>")
        self.assertEqual(repr(self.transfer), "<haul.Transfer, write of 4096 bytes, in flight>")

    def test_timeouts(self):
        second = self.remote.write(self.node.alloc(4096), only="tcp", timeout=3600)
        for wait in (haul.wait_all, haul.wait_any):
            for timeout in (0, 0.1):
                self.assertRaises(haul.TimedOut, wait, [self.transfer, second], timeout=timeout)
        failed = self.remote.write(self.node.alloc(4096), only="tcp")
        failed.cancel()
        self.assertRaises(haul.Canceled, failed.wait)
        self.assertRaises(haul.TimedOut, haul.wait_all, [failed, second], timeout=0.1)
        self.assertFalse(self.transfer.done() or second.done())

    def test_another_thread_closes_one_of_them(self):
        for wait in (haul.wait_all, haul.wait_any):
            second = self.remote.write(self.node.alloc(4096), only="tcp", timeout=3600)
            with self.subTest(wait.__name__), ThreadPoolExecutor() as pool:
                before = begun("haul_transfer_test")
                waited = pool.submit(wait, [self.transfer, second], timeout=math.inf)
                self.soon(lambda: begun("haul_transfer_test") > before)
                second.close()
                self.assertRaises(haul.Closed, waited.result, support.PATIENCE)


class Foreign(support.Case):
    """Threads that the interpreter did not create."""

    def test_a_tensor_is_deleted_during_the_interpreter_s_end(self):
        """The thread waits for the GIL, which the main thread keeps until its end."""
        child = self.child("""
            import ctypes, time
            from test_dlpack import consume

            class Last:
                def __del__(self, sleep=time.sleep):
                    sleep(1)  # without the GIL

            last = Last()
            node = haul.Node()
            managed = consume(node.alloc(4096).__dlpack__())
            address = ctypes.c_void_p(ctypes.addressof(managed))
            sys.setswitchinterval(1000)
            ctypes.PyDLL(None).holding_delete(managed.deleter, address)
        """)
        self.assertEqual(child.end(), (0, "deleted\n"))

    def test_tensors_are_deleted_after_that(self):
        """The main thread can still close objects; other threads do nothing."""
        source = """
            import atexit, ctypes

            def end():
                ctypes.CDLL(None).holding_delete(managed.deleter, address)
                globals().pop("capsule")
                second.close()
                try:
                    first.close()
                except BufferError:
                    print("in use")

            atexit.register(end)
            import haul
            from test_dlpack import consume
            node = haul.Node()
            first, second = node.alloc(4096), node.alloc(4096)
            managed = consume(first.__dlpack__())
            capsule = second.__dlpack__()
            address = ctypes.c_void_p(ctypes.addressof(managed))
        """
        child = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            timeout=support.PATIENCE,
            text=True,
        )
        self.assertEqual((child.stdout, child.stderr), ("in use\n", "deleted\n"))


if __name__ == "__main__":
    support.main()
