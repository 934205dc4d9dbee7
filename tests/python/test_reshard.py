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
from unittest import mock

import haul
import support
from haul import READ, safetensors
from haul.reshard import Layout, Part, Replicate, Shard, fetch, fetch_all, layout_of, plan, stored

np = None
PATIENCE = support.PATIENCE
EVERY_PAIR = "HAUL_TEST_EVERY_PAIR" in os.environ  # else some targets for each source


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


def factors(ranks):
    """Every mesh of so many ranks whose dimensions are longer than 1."""
    if ranks == 1:
        yield ()
    for first in range(2, ranks + 1):
        if ranks % first == 0:
            yield from ((first, *rest) for rest in factors(ranks // first))


MESHES = [(1,), *(mesh for ranks in range(2, 17) for mesh in factors(ranks))]


def layouts_of(shape):
    """Every layout over the meshes of up to 16 ranks."""
    dims = [Replicate(), *map(Shard, range(len(shape)))]
    for mesh in MESHES:
        for placements in itertools.product(dims, repeat=len(mesh)):
            yield Layout(shape, mesh, placements)


def blocks_of(layout):
    return tuple(map(layout.block, range(layout.ranks)))


class Plans(support.Case):
    def check(self, array, source, target):
        memories = [memory_of(block, source) for block in parts_of(array, source)]
        wanted = [memory_of(block, target) for block in parts_of(array, target)]
        self.moves(plan(source, target, array.itemsize), memories, wanted)

    def moves(self, planned, memories, wanted):
        """The moves make the memories that are wanted, and write each of their bytes once: no plan moves less."""
        made = [bytearray(len(memory)) for memory in wanted]
        written = [bytearray(len(memory)) for memory in wanted]
        for move in planned.moves:
            to, counts, source = made[move.target], written[move.target], memories[move.source]
            for at, start, length in planned.pieces(move):
                part = source[start : start + length]
                self.assertEqual((len(part), counts[at : at + length]), (length, bytes(length)), planned)
                to[at : at + length] = part
                counts[at : at + length] = b"\1" * length
        self.assertEqual(made, wanted, planned)
        self.assertEqual(written, [b"\1" * len(memory) for memory in wanted], planned)
        self.assertEqual(planned.nbytes, sum(map(len, wanted)), planned)

    def test_blocks_are_the_parts_that_pytorch_cuts(self):
        array = np.arange(7 * 10).reshape(7, 10)
        for layout in layouts_of(array.shape):
            for block, part in zip(blocks_of(layout), parts_of(array, layout), strict=True):
                cut = array[tuple(slice(first, first + count) for first, count in block)]
                self.assertTrue(np.array_equal(cut, part), layout)

    def test_every_pair_of_layouts_of_a_matrix(self):
        """Of layouts that give each rank the same block, one."""
        array = np.arange(7 * 10, dtype=np.uint16).reshape(7, 10)
        layouts = {blocks_of(layout): layout for layout in layouts_of(array.shape)}
        every = [
            (layout, [memory_of(block, layout) for block in parts_of(array, layout)])
            for layout in layouts.values()
        ]
        chosen, pairs = random.Random(1), 0
        for source, memories in every:
            for target, wanted in every if EVERY_PAIR else chosen.sample(every, 6):
                self.moves(plan(source, target, array.itemsize), memories, wanted)
                pairs += 1
        print(f"{pairs} pairs of {len(every)} layouts over {len(MESHES)} meshes")

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
            ((4,), (2,), [Shard(-2)]),
            ((), (2,), [Shard(0)]),
            ((), (2,), [Shard(-1)]),
            ((4,), (2, 2), [Shard(0)]),
            ((4,), (2,), ["rows"]),
            ((4, 4), (2,), [Shard(0)], (0, 0)),
        ):
            with self.assertRaises(ValueError):
                Layout(*arguments)
        with self.assertRaises(ValueError):
            Layout((4,), (2,), [Shard(0)]).block(2)
        for arguments in (
            ((4.0,),), ((4,), (2.0,)), ((4,), ("2",)), ((4,), (2,), [Shard(0.0)]),
            ((4,), (2,), [Shard(None)]), ((4,), (2,), [Shard(0)], (0.0,)),
        ):  # fmt: skip
            with self.assertRaisesRegex(TypeError, "expected integers"):
                Layout(*arguments)

    def test_numbers_of_numpy_are_integers(self):
        layout = Layout(np.array([4, 6]), np.array([2]), [Shard(np.int8(-1))])
        self.assertEqual(layout, Layout((4, 6), (2,), [Shard(1)]))
        self.assertEqual({*map(type, layout.shape), *map(type, layout.mesh)}, {int})
        self.assertIs(type(plan(layout, layout, np.int64(2)).nbytes), int)

    def test_dimensions_count_from_the_last_one_too(self):
        for dim in range(3):
            self.assertEqual(Layout((4, 5, 6), (2,), [Shard(dim - 3)]), Layout((4, 5, 6), (2,), [Shard(dim)]))

    def test_wrong_plans_are_refused(self):
        whole, wide = Layout((4,)), Layout((4,), (1 << 30,), [Shard(0)])
        for arguments, text in (
            ((whole, Layout((5,)), 1), "shape"),
            ((whole, whole, 0), "itemsize"),
            ((whole, whole, -1), "itemsize"),
            ((whole, wide, 1), "from 1 to 1073741824 ranks is too large: at most 4194304 pairs"),
            ((wide, whole, 1), "too large"),
            ((whole, whole, 1, lambda a, b: float("nan")), "from rank 0 to rank 0: expected a finite number"),
            ((whole, whole, 1, lambda a, b: float("-inf")), "finite"),
            ((whole, whole, 1, lambda a, b: "x"), "finite"),
            ((whole, whole, 1, lambda a, b: None), "finite"),
            ((whole, whole, 1, lambda a, b: 10**400), "finite"),
        ):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                plan(*arguments)
        for itemsize in (1.5, 2.0, "2", None):
            with self.assertRaisesRegex(TypeError, "invalid itemsize .* expected integers"):
                plan(whole, whole, itemsize)

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
        for other in ([1], np.ones(4), None):
            with self.assertRaisesRegex(TypeError, "expected a DTensor"):
                layout_of(other)


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

    def test_several_tensors_share_transfers(self):
        """With limits so low that runs of pieces are cut, too."""
        shapes = [(7, 10), (3, 4, 5), (16,), (0, 3), (1, 1)]
        arrays = [np.arange(np.prod(shape), dtype=np.uint16).reshape(shape) for shape in shapes]
        placements = [(Shard(1), Shard(0)), (Shard(2), Shard(1)), (Shard(0), Replicate()),
                      (Shard(0), Shard(1)), (Replicate(), Replicate())]  # fmt: skip
        pairs = [
            (Layout(shape, (3,), [there]), Layout(shape, (2,), [here]))
            for shape, (there, here) in zip(shapes, placements)
        ]
        memories, starts = [b""] * 3, []
        for array, (source, _) in zip(arrays, pairs):
            starts.append({rank: len(memory) for rank, memory in enumerate(memories)})
            blocks = parts_of(array, source)
            memories = [memory + memory_of(block, source) for memory, block in zip(memories, blocks)]
        remotes = {rank: self.share(f"all{rank}", memory) for rank, memory in enumerate(memories)}
        for rank, (pieces, length) in itertools.product(range(2), ((1 << 16, 1 << 26), (3, 1 << 26), (9, 31))):
            wanted, parts = b"", []
            for array, pair, start in zip(arrays, pairs, starts):
                parts.append(Part(plan(*pair, 2), 5 + len(wanted), start))
                wanted += memory_of(parts_of(array, pair[1])[rank], pair[1])
            with (
                mock.patch.multiple("haul.reshard", _PIECES=pieces, _BYTES=length),
                self.node.alloc(5 + len(wanted)) as region,
            ):
                self.assertEqual(fetch_all(parts, rank, region, remotes), len(wanted))
                with region.bytes() as found:
                    self.assertEqual(bytes(found[5:]), wanted)

    def test_a_source_that_is_too_short_is_an_error(self):
        source = target = Layout((64,))
        remotes = {0: self.share("short", b"x" * 63)}
        with self.node.alloc(64) as region, self.assertRaises(haul.OutOfRange):
            fetch(plan(source, target, 1), 0, region, remotes)
        with self.node.alloc(64) as region, self.assertRaises(KeyError):
            fetch(plan(source, target, 1), 0, region, {})
        with self.node.alloc(64) as region, self.assertRaises(ValueError):
            fetch(plan(source, target, 1), 1, region, remotes)


    def test_memory_of_other_elements_is_refused(self):
        array = np.arange(16, dtype=np.float32)
        remotes = {0: self.share("elements", array.tobytes())}
        layout, into = Layout(array.shape), np.zeros(16, np.float32)
        with self.node.wrap(into) as region:
            for memory in (region, region.tensor("float32", (16,))):
                for itemsize in (1, 2, 8):
                    with self.assertRaisesRegex(ValueError, f"elements of {itemsize} bytes, and the memory of 4"):
                        fetch(plan(layout, layout, itemsize), 0, memory, remotes)
            self.assertFalse(into.any())
            for memory in (region, region.tensor("uint8", (64,))):
                self.assertEqual(fetch(plan(layout, layout, 4), 0, memory, remotes), 64)
        self.assertTrue((into == array).all())
        with self.assertRaisesRegex(TypeError, "expected a Region or a Tensor"):
            fetch(plan(layout, layout, 4), 0, into, remotes)


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
