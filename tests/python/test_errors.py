# SPDX-License-Identifier: MIT
"""Errors."""

import math
import os
import pickle
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import haul
import support
from haul import Code, _haul


class Errors(support.Case):
    def test_codes_match_the_library(self):
        numbers = {name: number for name, (number, _, _) in _haul.codes().items()}
        self.assertEqual(numbers, {code.name: code.value for code in Code})

    def test_all_fields(self):
        with haul.Node() as node:
            error = self.fails(Code.ECONNECT, node.connect, "unix://@haul-test-nobody")
        self.assertEqual(error.call, "haul_peer_connect")
        self.assertIn("@haul-test-nobody", error.object)
        self.assertIn(error.text, str(error))
        self.assertIn(error.hint, str(error))
        self.assertEqual(str(error).count("@haul-test-nobody"), 1)
        self.assertNotEqual(error.system, 0)

    def test_builtin_base_classes(self):
        with haul.Node() as node:
            with self.assertRaises(TimeoutError) as caught:
                node.receive(timeout=0)
        self.assertIsInstance(caught.exception, haul.TimedOut)
        self.assertEqual(caught.exception.code, Code.ETIMEDOUT)
        self.assertTrue(issubclass(haul.PeerGone, ConnectionError))

    def test_each_code_has_a_class(self):
        self.assertEqual(set(haul.ERRORS), set(Code))
        self.assertEqual(len(set(haul.ERRORS.values())), len(Code))
        for code, kind in haul.ERRORS.items():
            with self.subTest(kind.__name__):
                error = haul._data.error_of(code, 5, "call", "object", "text", "hint")
                self.assertIs(type(error), kind)
                self.assertIs(getattr(haul, kind.__name__), kind)
                self.assertIsInstance(error, haul.Error)
                self.assertEqual(error.code, code)
                self.assertEqual(str(error), "call: object: text (hint: hint)")
                self.assertEqual(getattr(error, "errno", 5), 5)
                again = pickle.loads(pickle.dumps(error))
                self.assertEqual((type(again), again.args), (kind, error.args))

    def test_classes_of_the_guide(self):
        """docs/python.md has each code with its class and the class of Python."""
        guide = (support.REPOSITORY / "docs/python.md").read_text()
        rows = re.findall(r"^\| `haul\.(\w+)` \| (?:`(\w+)`)?\s*\| `(\w+)` \|", guide, re.M)
        self.assertEqual(
            rows,
            [
                (kind.__name__, "" if base is Exception else base.__name__, code.name)
                for code, kind in haul.ERRORS.items()
                for base in [kind.__mro__[2]]
            ],
        )

    def test_except_clauses(self):
        """By Python's class, by haul's, and by the base of all."""
        with haul.Node() as node:
            peer = node.connect(node.listen("tcp://127.0.0.1:0"))
            region = node.alloc(4096)
            region.publish("r")
            remote = peer.lookup("r")
            for base, kind, call in (
                (TimeoutError, haul.TimedOut, lambda: node.receive(timeout=0)),
                (ConnectionError, haul.ConnectFailed, lambda: node.connect("unix://@haul-nobody")),
                (FileNotFoundError, haul.NoSuchName, lambda: peer.lookup("none")),
                (FileExistsError, haul.NameInUse, lambda: region.publish("r")),
                (IndexError, haul.OutOfRange, lambda: remote.read(region, [(0, 4096, 1)])),
                (PermissionError, haul.AccessDenied, lambda: remote.write(region)),
                (PermissionError, haul.Insecure, lambda: node.listen("tcp://0.0.0.0:0")),
                (ValueError, haul.BadAddress, lambda: node.listen("nowhere")),
                (OSError, haul.AddressInUse, lambda: node.listen(node.addresses[0])),
                (ValueError, haul.NoSuchPlace, lambda: node.alloc(1, "attic")),
                (ValueError, haul.BadTicket, lambda: node.import_(bytes(256))),
                (ValueError, haul.Invalid, lambda: node.alloc(0)),
                (ValueError, haul.Closed, closed_region(node).export),
            ):
                for wanted in (base, kind, haul.Error):
                    with self.subTest(kind.__name__, wanted=wanted.__name__):
                        with self.assertRaises(wanted) as caught:
                            call()
                        self.assertIs(type(caught.exception), kind)
                        self.assertTrue(caught.exception.hint)

    def test_pickling(self):
        with haul.Node() as node:
            error = self.fails(Code.ETIMEDOUT, node.receive, timeout=0)
        again = pickle.loads(pickle.dumps(error))
        self.assertEqual(type(again), haul.TimedOut)
        self.assertEqual((again.code, again.hint), (error.code, error.hint))

    def test_module_of_classes(self):
        for name in haul.__all__:
            thing = getattr(haul, name)
            if isinstance(thing, type):
                self.assertEqual((thing.__module__, thing.__name__), ("haul", name))

    def test_unknown_codes_stay_numbers(self):
        self.assertEqual(haul._data.error_of(-99, 0, "", "", "text", "").code, -99)


def closed_region(node):
    region = node.alloc(4096)
    region.close()
    return region


class Arguments(support.Case):
    def setUp(self):
        self.node = haul.Node()
        self.addCleanup(self.node.close)

    def test_nodes(self):
        self.fails(Code.EINVAL, haul.Node, "a blank")
        for keywords in (
            {"timeout": -1},
            {"timeout": 0},
            {"timeout": math.nan},
            {"progress": "none"},
        ):
            with self.assertRaisesRegex(ValueError, f"^invalid {next(iter(keywords))} .*: expected"):
                haul.Node(**keywords)

    def test_settings(self):
        """Each error names the setting, its value and the valid values."""
        counts = (
            "tcp_rails copy_threads message_window pool_bytes max_peers max_regions max_transfers "
            "staging_bytes tcp_rate tcp_zero_copy max_peers_each max_lookups peer_bytes "
            "warm_bytes"
        ).split()
        for name in counts:
            with self.assertRaisesRegex(ValueError, f"^invalid {name} -1: expected an integer, 0"):
                haul.Node(**{name: -1})
            with self.assertRaisesRegex(TypeError, f"^invalid {name} 'two': expected an integer$"):
                haul.Node(**{name: "two"})
        for name in ("timeout", "spin", "liveness", "handshake"):
            with self.assertRaisesRegex(ValueError, f"^invalid {name} -1: expected seconds"):
                haul.Node(**{name: -1})
            with self.assertRaisesRegex(TypeError, f"^invalid {name} 'soon': expected a number of"):
                haul.Node(**{name: "soon"})
        for name, value, text in (
            ("tcp_rails", 99, "invalid tcp_rails '99': expected a number from 1 to 16"),
            ("tcp_rails", 1 << 80, "': expected a number from 1 to 16"),
            ("max_lookups", 1 << 21, "'2097152': expected a number from 1 to 1048576 or none"),
            ("tcp_rate", 1000, "'1000': expected a number of bytes of at least 1M"),
            ("tcp_zero_copy", 4095, "'4095': expected a number of bytes of at least 4K"),
            ("staging_bytes", 4096, "'4K': expected a number of bytes of at least 8M"),
            ("peer_bytes", 4096, "'4K': expected a number of bytes of at least 1M"),
        ):
            error = self.fails(Code.EINVAL, haul.Node, **{name: value})
            self.assertIn(text, error.text)
            self.assertEqual(error.object.removesuffix("_bytes"), name.removesuffix("_bytes"))
        for name in ("key", "certificate", "private_key", "authority", "directory_login"):
            with self.assertRaisesRegex(TypeError, f"^invalid {name} 7: expected a path$"):
                haul.Node(**{name: 7})
        for name in counts:
            haul.Node(**{name: None}).close()
            if name not in ("tcp_rails", "max_lookups", "warm_bytes"):  # these have a limit
                haul.Node(**{name: 1 << 80}).close()

    def test_times(self):
        for timeout in (-1, math.nan):
            with self.assertRaises(ValueError):
                self.node.receive(timeout=timeout)
        with self.assertRaises(TypeError):
            self.node.receive(timeout="soon")

    def test_addresses(self):
        self.fails(Code.EADDRESS, self.node.listen, "nowhere")
        self.fails(Code.EADDRESS, self.node.connect, "tcp://127.0.0.1:99999")
        self.fails(Code.EADDRESS, self.node.listen, "tcp://" + "a" * 1000 + ":0")
        self.fails(Code.EINSECURE, self.node.listen, "tcp://0.0.0.0:0")
        with self.assertRaises(ValueError):
            self.node.listen("unix:///tmp/\0")

    def test_lengths_and_places(self):
        self.fails(Code.EINVAL, self.node.alloc, 0)
        self.fails(Code.EPLACE, self.node.alloc, 4096, "attic")
        self.fails(Code.EPLACE, self.node.alloc, 4096, "sim:99")
        with self.assertRaises(OverflowError):
            self.node.alloc(-1)
        with self.assertRaises(TypeError):
            self.node.alloc("much")

    def test_only_nodes_can_be_created(self):
        for kind in (haul.Region, haul.Peer, haul.Remote, haul.Transfer, haul.Tensor):
            with self.assertRaises(TypeError):
                kind()


class Closed(support.Case):
    def test_a_closed_node(self):
        node = haul.Node()
        region = node.alloc(4096)
        node.close()
        node.close()
        self.assertTrue(node.closed)
        for call in (node.devices, node.fileno, node.receive, node.progress, node.counters):
            self.fails(Code.ECLOSED, call)
        self.fails(Code.ECLOSED, node.alloc, 4096)
        self.fails(Code.ECLOSED, node.wrap, bytearray(8))
        self.fails(Code.ECLOSED, node.import_, bytes(256), 0)
        self.fails(Code.ECLOSED, region.publish, "name")
        self.fails(Code.ECLOSED, lambda: region.address)
        with self.assertRaises(BufferError):
            memoryview(region)
        self.fails(Code.ECLOSED, region.__dlpack__)
        region.close()

    def test_a_closed_region(self):
        with haul.Node() as node:
            with node.alloc(4096) as region:
                tensor = region.tensor("uint8", (8,))
            self.assertTrue(region.closed)
            self.fails(Code.ECLOSED, region.export)
            with self.assertRaises(BufferError):
                memoryview(tensor)
            self.fails(Code.ECLOSED, tensor.__dlpack__)
            with self.assertRaises(haul.Error):
                with region:
                    pass

    def test_a_waiting_thread_ends_with_the_node(self):
        node = haul.Node()
        met = []

        def wait():
            try:
                node.receive(timeout=math.inf)
            except haul.Error as error:
                met.append(error.code)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        node.close()
        thread.join(support.PATIENCE)
        self.assertEqual(met, [Code.ECLOSED])

    def test_any_order_of_the_end(self):
        for order in ("node, region, view", "view, region, node", "region, view, node"):
            node = haul.Node()
            region = node.alloc(4096)
            view = memoryview(region)
            names = {"node": node, "region": region, "view": view}
            del node, region, view
            for name in order.split(", "):
                del names[name]

    def test_the_interpreter_may_end_with_everything_open(self):
        child = self.child("""
            node = haul.Node()
            node.listen("tcp://127.0.0.1:0")
            region = node.alloc(1 << 20)
            region.publish("r", haul.READ | haul.WRITE)
            view = memoryview(region)
            capsule = region.__dlpack__()
            wrapped = node.wrap(bytearray(4096))
            peer = node.connect(node.addresses[0])
            remote = peer.lookup("r")
            transfer = remote.write(wrapped)
        """)
        self.ends_well(child)


class WithStatements(support.Case):
    """Their end does not hide an exception."""

    def open(self):
        node = haul.Node()
        return node, node.alloc(4096)

    def test_close_is_refused_while_memory_is_in_use(self):
        node, region = self.open()
        view = memoryview(region)
        for thing in (region, node):
            with self.assertRaises(BufferError), thing:
                pass
            self.assertFalse(thing.closed)
        view.release()
        node.close()

    def test_exceptions_propagate(self):
        for hold in (memoryview, lambda region: region.__dlpack__()):
            node, region = self.open()
            with self.assertRaises(ZeroDivisionError) as caught:
                with node, region:
                    held = hold(region)
                    raise ZeroDivisionError
            self.assertIsNone(caught.exception.__context__)
            self.assertTrue(node.closed and region.closed)
            self.fails(Code.ECLOSED, node.alloc, 4096)
            self.fails(Code.ECLOSED, region.export)
            for thing in (node, region):
                with self.assertRaises(BufferError):
                    thing.close()
            del held
            region.close()
            node.close()

    def test_the_last_export_closes_it(self):
        node, region = self.open()
        address = node.listen(f"unix://@haul-test-errors-{os.getpid()}")
        with haul.Node() as other:
            peer = other.connect(address)
            with self.assertRaises(ZeroDivisionError), node:
                views = [memoryview(region) for _ in range(2)]
                raise ZeroDivisionError
            views.pop().release()
            views[0][:5] = b"still"
            self.assertTrue(peer.alive)
            views.pop().release()
            until = time.monotonic() + support.PATIENCE
            while peer.alive and time.monotonic() < until:
                time.sleep(0.01)
            self.assertFalse(peer.alive)

    def test_wrapped_memory_is_released(self):
        data = bytearray(4096)
        with haul.Node() as node:
            region = node.wrap(data)
            with self.assertRaises(ZeroDivisionError), region:
                view = memoryview(region)
                raise ZeroDivisionError
            with self.assertRaises(BufferError):
                data.append(1)
            view.release()
            data.append(1)


class Signals(support.Case):
    """Ctrl-C ends waits."""

    def setUp(self):
        def interrupt(number, frame):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)

    def interrupted(self, call, *args, **keywords):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        began = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            call(*args, **keywords)
        self.assertLess(time.monotonic() - began, 20)

    def test_receive_and_progress(self):
        with haul.Node() as node:
            self.interrupted(node.receive, timeout=math.inf)
            self.interrupted(node.progress, math.inf)

    def test_transfers(self):
        """To a node that is not driven."""
        with haul.Node(liveness=3600) as node, haul.Node(progress="caller", liveness=3600) as silent:
            address = silent.listen(f"unix://@haul-test-signals-{os.getpid()}")
            region = silent.alloc(4096)
            region.publish("r", haul.WRITE)
            with ThreadPoolExecutor() as pool:
                looked_up = pool.submit(lambda: node.connect(address).lookup("r"))
                while not looked_up.done():
                    silent.progress(0.01)
            transfer = looked_up.result().write(node.alloc(4096), only="tcp")
            self.interrupted(transfer.wait, math.inf)
            self.interrupted(haul.wait_all, [transfer], timeout=math.inf)
            self.interrupted(haul.wait_any, [transfer], timeout=math.inf)

    def test_connect(self):
        """To a socket that accepts connections and never responds."""
        import socket

        with socket.socket() as silent, haul.Node() as node:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
            self.interrupted(node.connect, address, timeout=3)
            self.fails(Code.ETIMEDOUT, node.connect, address, timeout=0.3)
            self.assertEqual(node.devices() != [], True)


class Forks(support.Case):
    def test_children_can_only_close(self):
        with haul.Node() as node, node.alloc(4096) as region:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    codes = []
                    for call in (lambda: node.alloc(4096), region.export, haul.Node):
                        try:
                            call()
                        except haul.Error as error:
                            codes.append(error.code)
                    region.close()
                    node.close()
                    status = 0 if codes == [Code.EFORK] * 3 else 2
                finally:
                    os._exit(status)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(len(memoryview(region)), 4096)


if __name__ == "__main__":
    support.main()
