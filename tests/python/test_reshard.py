# SPDX-License-Identifier: MIT
"""haul.reshard: from one layout to another, each byte once."""

import itertools
import json
import os
import pathlib
import random
import struct
import tempfile
import xml.etree.ElementTree

import haul
import support
from haul import READ, safetensors
from haul.reshard import Layout, Replicate, Shard, fetch, layout_of, plan, stored

np = None
PATIENCE = support.PATIENCE


def setUpModule():
    global np
    np = support.module("numpy")


def parts_of(array, layout):
    """Each rank's block by slices alone, as PyTorch's chunk cuts them."""
    found = [array]
    for parts, placement in zip(layout.mesh, layout.placements):
        if isinstance(placement, Replicate):
            found = [one for one in found for _ in range(parts)]
            continue
        cut = []
        for one in found:
            length = one.shape[placement.dim]
            step = -(-length // parts)
            for i in range(parts):
                index = [slice(None)] * one.ndim
                index[placement.dim] = slice(min(i * step, length), min((i + 1) * step, length))
                cut.append(one[tuple(index)])
        found = cut
    return found


def memory_of(block, layout):
    """A rank's memory: the bytes of its block in the layout's order."""
    return bytearray(np.ascontiguousarray(block.transpose(layout.order)).tobytes())


def run(planned, memories, target):
    """What the moves make of the sources' memories."""
    made = [bytearray(b"\xee" * len(memory)) for memory in target]
    for move in planned.moves:
        for at, source, length in planned.pieces(move):
            assert at + length <= len(made[move.target])
            assert source + length <= len(memories[move.source])
            made[move.target][at : at + length] = memories[move.source][source : source + length]
    return made


MESHES = [(1,), (2,), (3,), (4,), (8,), (16,), (2, 2), (4, 2), (2, 8), (4, 4), (2, 2, 2), (2, 2, 4)]


def layouts_of(shape, orders=False):
    """Every layout over the meshes of up to 16 ranks."""
    dims = [Replicate(), *map(Shard, range(len(shape)))]
    for mesh in MESHES:
        for placements in itertools.product(dims, repeat=len(mesh)):
            for order in itertools.permutations(range(len(shape))) if orders else [None]:
                yield Layout(shape, mesh, placements, order)


class Plans(support.Case):
    def check(self, array, source, target):
        planned = plan(source, target, array.itemsize)
        memories = [memory_of(block, source) for block in parts_of(array, source)]
        wanted = [memory_of(block, target) for block in parts_of(array, target)]
        self.assertEqual(run(planned, memories, wanted), wanted, (source, target))
        self.assertEqual(planned.nbytes, sum(map(len, wanted)), (source, target))  # each byte once
        self.assertEqual(sum(n for m in planned.moves for *_, n in planned.pieces(m)), planned.nbytes)

    def test_every_pair_of_layouts_of_a_matrix(self):
        array = np.arange(7 * 10, dtype=np.uint16).reshape(7, 10)
        every = list(layouts_of(array.shape))
        chosen = random.Random(1)
        for source in every:
            for target in chosen.sample(every, 12):
                self.check(array, source, target)

    def test_layouts_of_other_shapes_types_and_orders(self):
        chosen = random.Random(2)
        for _ in range(400):
            shape = tuple(chosen.choice((0, 1, 2, 3, 5, 8, 13)) for _ in range(chosen.randint(0, 4)))
            dtype = chosen.choice((np.uint8, np.float32, np.complex128))
            array = np.frombuffer(
                chosen.randbytes(int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize), dtype
            ).reshape(shape)
            self.check(array, self.any_layout(chosen, shape), self.any_layout(chosen, shape))

    def any_layout(self, chosen, shape):
        mesh = chosen.choice(MESHES)
        dims = [Replicate(), *map(Shard, range(len(shape)))]
        order = chosen.sample(range(len(shape)), len(shape))
        return Layout(shape, mesh, [chosen.choice(dims) for _ in mesh], order)

    def test_rows_that_stay_rows_are_one_piece(self):
        rows = plan(Layout((64, 32), (8,), [Shard(0)]), Layout((64, 32), (4,), [Shard(0)]), 2)
        self.assertEqual([len(list(rows.pieces(move))) for move in rows.moves], [1] * 8)
        columns = plan(Layout((64, 32), (8,), [Shard(1)]), Layout((64, 32), (4,), [Shard(1)]), 2)
        self.assertEqual([len(list(columns.pieces(move))) for move in columns.moves], [64] * 8)

    def test_replicas_share_the_work(self):
        source = Layout((16, 4), (4,), [Replicate()])
        planned = plan(source, Layout((16, 4), (8,), [Shard(0)]), 1)
        sent = [sum(planned.nbytes_of(m) for m in planned.moves if m.source == r) for r in range(4)]
        self.assertEqual(sent, [16] * 4)

    def test_the_nearest_replica_sends(self):
        source = Layout((16, 4), (4,), [Replicate()])
        target = Layout((16, 4), (4,), [Replicate()])
        planned = plan(source, target, 1, distance=lambda there, here: abs(there - here))
        self.assertEqual([(m.source, m.target) for m in planned.moves], [(i, i) for i in range(4)])

    def test_wrong_layouts_are_refused(self):
        for arguments in (
            ((4, -1), (2,), [Shard(0)]),
            ((4,), (0,), [Shard(0)]),
            ((4,), (2,), [Shard(1)]),
            ((4,), (2,), [Shard(-1)]),
            ((4,), (2, 2), [Shard(0)]),
            ((4,), (2,), ["rows"]),
            ((4, 4), (2,), [Shard(0)], (0, 0)),
        ):
            with self.assertRaises(ValueError):
                Layout(*arguments)
        with self.assertRaises(ValueError):
            Layout((4,), (2,), [Shard(0)]).block(2)
        with self.assertRaises(ValueError):
            plan(Layout((4,)), Layout((5,)), 1)
        with self.assertRaises(ValueError):
            plan(Layout((4,)), Layout((4,)), 0)

    def test_table_and_picture(self):
        source, target = Layout((8, 4), (4,), [Shard(0)]), Layout((8, 4), (2,), [Shard(0)])
        planned = plan(source, target, 2)
        self.assertEqual(
            planned.table(),
            "      from 0  from 1  from 2  from 3  bytes\n"
            "to 0      16      16       .       .     32\n"
            "to 1       .       .      16      16     32\n",
        )
        picture = xml.etree.ElementTree.fromstring(planned.svg())
        cells = picture.findall("{http://www.w3.org/2000/svg}rect")
        self.assertEqual(len(cells), len(planned.moves))

    def test_layouts_of_distributed_tensors(self):
        class Named:
            def __init__(self, **values):
                self.__dict__.update(values)

        class Shard(Named):
            pass

        class Replicate(Named):
            pass

        class Partial(Named):
            pass

        mesh = Named(shape=(2, 4))
        found = layout_of(
            Named(shape=(8, 6), device_mesh=mesh, placements=(Replicate(), Shard(dim=-1)))
        )
        self.assertEqual(found.block(5), ((0, 8), (2, 2)))
        with self.assertRaises(ValueError):
            layout_of(Named(shape=(8,), device_mesh=mesh, placements=(Partial(), Replicate())))


class Moves(support.Case):
    def setUp(self):
        self.node = haul.Node("target", timeout=PATIENCE)
        self.owner = haul.Node("source", timeout=PATIENCE)
        self.addCleanup(self.node.close)
        self.addCleanup(self.owner.close)
        self.owner.listen("tcp://127.0.0.1:0")
        self.peer = self.node.connect(self.owner.addresses[0])

    def share(self, name, memory, before=b""):
        region = self.owner.alloc(max(len(before) + len(memory), 1))
        with region.bytes() as bytes_of:
            bytes_of[: len(before) + len(memory)] = before + memory
        region.publish(name, READ)
        self.addCleanup(region.close)
        return self.peer.lookup(name)

    def test_columns_of_eight_become_rows_of_four(self):
        array = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
        source, target = Layout(array.shape, (8,), [Shard(1)]), Layout(array.shape, (4,), [Shard(0)])
        planned = plan(source, target, array.itemsize)
        remotes = {
            rank: self.share(f"shard{rank}", bytes(memory_of(block, source)), b"head" * rank)
            for rank, block in enumerate(parts_of(array, source))
        }
        for rank, block in enumerate(parts_of(array, target)):
            with self.node.alloc(16 + block.nbytes) as region:
                got = fetch(
                    planned, rank, region, remotes, first=16, checksum=True,
                    starts={source: 4 * source for source in remotes},
                )  # fmt: skip
                self.assertEqual(got, block.nbytes)
                with region.bytes() as found:
                    self.assertEqual(bytes(found[16:]), block.tobytes())

    def test_a_source_that_is_too_short_is_an_error(self):
        source = target = Layout((64,))
        remotes = {0: self.share("short", b"x" * 63)}
        with self.node.alloc(64) as region, self.assertRaises(haul.OutOfRange):
            fetch(plan(source, target, 1), 0, region, remotes)
        with self.node.alloc(64) as region, self.assertRaises(KeyError):
            fetch(plan(source, target, 1), 0, region, {})
        with self.node.alloc(64) as region, self.assertRaises(ValueError):
            fetch(plan(source, target, 1), 1, region, remotes)


class Files(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.index = self.folder / "model.safetensors.index.json"

    def file(self, name, tensors):
        header, data = {}, b""
        for tensor, array in tensors.items():
            offsets = [len(data), len(data) + array.nbytes]
            header[tensor] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": offsets}
            data += array.tobytes()
        text = json.dumps(header).encode()
        (self.folder / name).write_bytes(struct.pack("<Q", len(text)) + text + data)

    def test_an_index_tells_where_tensors_are(self):
        first, second = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(5, np.float32)
        self.file("a.safetensors", {"one": first})
        self.file("b.safetensors", {"zero": second, "two": first})
        self.index.write_text(
            json.dumps({"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}})
        )
        found = stored(self.index)
        self.assertEqual(sorted(found), ["one", "two"])
        for one in found.values():
            content = pathlib.Path(one.path).read_bytes()
            at = one.entry.offset
            self.assertEqual(content[at : at + one.entry.nbytes], first.tobytes())

    def test_damaged_indexes_are_refused(self):
        self.file("a.safetensors", {"one": np.ones(2, np.float32)})
        for text in (
            "[", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"one": 1}}',
            '{"weight_map": {"one": "../a.safetensors"}}', '{"weight_map": {"one": ""}}',
            '{"weight_map": {"other": "a.safetensors"}}', "[" * 100000,
        ):  # fmt: skip
            self.index.write_text(text)
            with self.assertRaises(safetensors.Damaged, msg=text[:40]):
                stored(self.index)
        self.index.write_text('{"weight_map": {"one": "absent.safetensors"}}')
        with self.assertRaises(OSError):
            stored(os.fspath(self.index))


if __name__ == "__main__":
    support.main()
