# SPDX-License-Identifier: MIT
"""Transfers and messages, awaited."""

import asyncio
import gc
import os
import socket
import threading
import unittest
import weakref
from unittest import mock

import haul
import support
from haul import READ, WRITE, Code

SIZE = 16 << 20


def left_waiting(coroutine):
    """A closed loop, and its task that still waits."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    task._log_destroy_pending = False  # asyncio would log it
    return loop, task


class Awaited(support.Case, unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.owner = haul.Node("owner")
        self.node = haul.Node("asker")
        self.addCleanup(self.owner.close)
        self.addCleanup(self.node.close)
        self.there = self.owner.alloc(SIZE)
        self.there.publish("there", READ | WRITE)
        address = self.owner.listen("tcp://127.0.0.1:0")
        self.peer = await asyncio.to_thread(self.node.connect, address)
        self.remote = await asyncio.to_thread(self.peer.lookup, "there")

    async def test_failures_are_raised(self):
        region = self.node.alloc(SIZE)
        with self.assertRaises(haul.TimedOut):
            await self.remote.write(region, only="tcp", timeout=0)
        transfer = self.remote.write(region, only="tcp")
        transfer.close()
        with self.assertRaises(haul.Error) as caught:
            await transfer
        self.assertEqual((caught.exception.code, caught.exception.call), (Code.ECLOSED, "await"))

    async def test_the_owner_leaves(self):
        region = self.node.alloc(SIZE)

        async def leave():
            await asyncio.to_thread(self.there.close)

        async def write():
            while True:
                await self.remote.write(region, only="tcp")

        results = await asyncio.gather(write(), leave(), return_exceptions=True)
        self.assertIsInstance(results[0], haul.Error)

    async def test_the_node_is_closed_meanwhile(self):
        waiting = asyncio.create_task(haul.aio.receive(self.node))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(self.node.close)
        with self.assertRaises(haul.Error) as caught:
            await asyncio.wait_for(waiting, support.PATIENCE)
        self.assertEqual((caught.exception.code, caught.exception.call), (Code.ECLOSED, "receive"))
        with self.assertRaises(haul.Error) as caught:
            await haul.aio.receive(self.node)
        self.assertEqual((caught.exception.code, caught.exception.call), (Code.ECLOSED, "receive"))

    async def test_new_descriptors_keep_their_readers(self):
        """Its descriptor may have the number of the node's closed one."""
        loop, heard, node = asyncio.get_running_loop(), asyncio.Event(), haul.Node()
        waiting = asyncio.create_task(haul.aio.receive(node))
        await asyncio.sleep(0.05)
        number = node.fileno()
        node.close()
        ends = {}
        while number not in ends:
            ours, theirs = socket.socketpair()
            ends.update({ours.fileno(): theirs, theirs.fileno(): ours})
            self.addCleanup(ours.close)
            self.addCleanup(theirs.close)
        loop.add_reader(number, heard.set)
        with self.assertRaises(haul.Error):
            await asyncio.wait_for(waiting, support.PATIENCE)
        ends[number].send(b"!")
        await asyncio.wait_for(heard.wait(), 10)
        self.assertTrue(loop.remove_reader(number))

    async def test_descriptors_are_closed(self):
        def count():
            return len(os.listdir("/proc/self/fd"))

        with self.assertRaises(haul.TimedOut):
            await haul.aio.receive(self.node, timeout=0.05)
        before = count()
        for _ in range(3):
            with self.assertRaises(haul.TimedOut):
                await haul.aio.receive(self.node, timeout=0.05)
        self.assertEqual(count(), before)

    async def test_a_transfer_is_closed_meanwhile(self):
        region = self.node.alloc(SIZE)
        met = None
        while met is None:  # it may end before the close
            transfer = self.remote.write(region, only="tcp")
            waiting = asyncio.ensure_future(transfer)
            await asyncio.sleep(0)
            transfer.close()
            try:
                await asyncio.wait_for(waiting, support.PATIENCE)
            except haul.Error as error:
                met = error
        self.assertEqual((met.code, met.call), (Code.ECLOSED, "await"))

    async def test_no_message(self):
        """The error equals that of Node.receive."""
        expected = self.fails(Code.ETIMEDOUT, self.node.receive, timeout=0)
        for timeout in (0, 0.05):
            with self.assertRaises(haul.TimedOut) as caught:
                await haul.aio.receive(self.node, timeout=timeout)
            self.assertIsInstance(caught.exception, TimeoutError)
            self.assertEqual(str(caught.exception), str(expected))
            self.assertEqual(caught.exception.code, Code.ETIMEDOUT)
            self.assertIsNone(caught.exception.__cause__)
            self.assertIsNone(caught.exception.__context__)

    async def test_a_task_that_is_canceled(self):
        """Its transfer is canceled and has ended: its memory can be reused at once."""
        region = self.node.alloc(SIZE)
        for delay in (0, 0.001, 0.003):
            transfer = self.remote.write(region, only="tcp")
            task = asyncio.ensure_future(transfer)
            await asyncio.sleep(delay)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            if delay or transfer.done():
                self.assertTrue(transfer.done())
            transfer.cancel()
            try:
                await transfer
            except haul.Error as error:
                self.assertEqual(error.code, Code.ECANCELED)

    async def test_a_task_that_is_canceled_again(self):
        """It ends after its transfer, however often it is canceled."""

        class Slow:
            """A transfer that ends only on request."""

            node, cancels, ended = self.node, 0, False

            def done(self):
                return self.ended

            def cancel(self):
                self.cancels += 1

        transfer = Slow()
        task = asyncio.create_task(haul.aio.finish(transfer))
        for _ in range(5):
            await asyncio.sleep(0.05)
            task.cancel()
        await asyncio.sleep(0.05)
        self.assertFalse(task.done())
        for _ in range(3):  # twice before the task runs
            task.cancel()
            task.cancel()
            await asyncio.sleep(0)
        self.assertFalse(task.done())
        transfer.ended = True
        with self.assertRaises(asyncio.CancelledError):
            await asyncio.wait_for(task, support.PATIENCE)
        self.assertEqual(transfer.cancels, 1)
        self.assertEqual(self.node._watch.waiters, set())

    async def test_canceled_receivers_lose_no_message(self):
        for _ in range(20):
            task = asyncio.create_task(haul.aio.receive(self.owner))
            await asyncio.sleep(0)
            self.peer.send(b"kept")
            await asyncio.sleep(0)
            task.cancel()
            try:
                message = await task
            except asyncio.CancelledError:
                message = await haul.aio.receive(self.owner, timeout=support.PATIENCE)
            self.assertEqual(message.data, b"kept")

    async def test_one_transfer(self):
        region = self.node.wrap(bytearray(os.urandom(SIZE)))
        transfer = self.remote.write(region)
        self.assertIs(await transfer, transfer)
        self.assertIs(await transfer, transfer)  # again
        self.assertEqual(memoryview(self.there), memoryview(region))

    async def test_in_the_background(self):
        self.assertIn("asyncio.ensure_future(transfer)", haul.Transfer.__doc__)
        transfer = self.remote.write(self.node.alloc(SIZE), only="tcp")
        waiting = asyncio.ensure_future(transfer)
        self.assertIs(await waiting, transfer)
        self.assertTrue(transfer.done())

    async def test_many_at_once(self):
        count = 64
        part = SIZE // count
        region = self.node.wrap(bytearray(os.urandom(SIZE)))
        transfers = [
            self.remote.write(region, [(i * part, i * part, part)], only=("tcp", "map")[i % 2])
            for i in range(count)
        ]
        self.assertEqual(await asyncio.gather(*transfers), transfers)
        self.assertEqual(memoryview(self.there), memoryview(region))

    async def test_messages_among_transfers(self):
        region = self.node.alloc(SIZE)

        async def echo():
            for i in range(50):
                message = await haul.aio.receive(self.owner)
                self.assertEqual(message.tag, i)
                message.peer.send(message.data, tag=i)

        async def ask():
            for i in range(50):
                self.peer.send(b"%d" % i, tag=i)
                self.assertEqual((await haul.aio.receive(self.node)).data, b"%d" % i)

        async def move():
            for _ in range(10):
                await self.remote.write(region, only="tcp")

        await asyncio.wait_for(asyncio.gather(echo(), ask(), move(), move()), support.PATIENCE)

    async def test_two_loops(self):
        """The loop that sees an event wakes the others."""
        failures = []

        async def move():
            region = self.node.alloc(1 << 20)
            for _ in range(20):
                await self.remote.write(region, only="tcp")

        def other():
            try:
                asyncio.run(asyncio.wait_for(move(), support.PATIENCE))
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=other)
        thread.start()
        await asyncio.wait_for(move(), support.PATIENCE)
        await asyncio.to_thread(thread.join)
        self.assertEqual(failures, [])

    async def test_another_loop_is_closed_at_the_last_moment(self):
        """After the check whether it is closed."""
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, said: complaints.append(said))
        other, task = await asyncio.to_thread(left_waiting, haul.aio.receive(self.owner))
        with mock.patch.object(other, "is_closed", lambda: False):
            waiting = asyncio.create_task(haul.aio.receive(self.owner))
            await asyncio.sleep(0)
            self.peer.send(b"news")
            message = await asyncio.wait_for(waiting, support.PATIENCE)
        self.assertEqual((message.data, complaints), (b"news", []))
        task.get_coro().close()

    async def test_progress_by_the_caller(self):
        with haul.Node(progress="caller") as node:
            address = self.owner.addresses[0]
            peer = await asyncio.to_thread(node.connect, address)
            remote = await asyncio.to_thread(peer.lookup, "there")
            region = node.alloc(SIZE)
            await asyncio.gather(*(remote.write(region, only="tcp") for _ in range(4)))


class Forgotten(support.Case):
    """A node and the tasks that wait for it refer to each other, but are freed."""

    def setUp(self):
        self.owner = haul.Node("owner")
        self.addCleanup(self.owner.close)
        self.there = self.owner.alloc(SIZE)
        self.there.publish("there", READ | WRITE)
        self.address = self.owner.listen("tcp://127.0.0.1:0")

    def is_freed(self, leave):
        """Asserts that the result of `leave`, which refers to a node, is freed."""
        kept = leave()
        gone = weakref.ref(kept)
        del kept
        gc.collect()
        self.assertTrue(gone() is None)

    def test_a_receiver(self):
        self.is_freed(lambda: left_waiting(haul.aio.receive(haul.Node()))[1])

    def test_a_transfer(self):
        def leave():
            node = haul.Node(progress="caller")
            remote = node.connect(self.address).lookup("there")
            view = memoryview(node.alloc(SIZE).tensor("uint8", (SIZE,)))

            async def move():
                with node.wrap(view) as region:
                    await remote.read(region.tensor("uint8", (SIZE,)), only="tcp")

            return left_waiting(move())[1]

        self.is_freed(leave)

    def test_an_object_that_refers_to_its_region(self):
        class Data(bytearray):
            pass

        def leave():
            data = Data(4096)
            data.region = haul.Node().wrap(data)
            return data

        self.is_freed(leave)


if __name__ == "__main__":
    support.main()
