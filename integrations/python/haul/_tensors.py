# SPDX-License-Identifier: MIT
"""haul.send, haul.receive and haul.share: tensors from process to process.

A tensor goes to a peer whose `receive` takes it, by an offer (haul._inbox); or into, or out of, a
tensor that a process shares under a name. A shared tensor is a published region. A second region,
NAME.tensor, has its header, which has the form of an offer (docs/protocol.md, Tensors).
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
import time
import urllib.parse
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ._data import Code, Error, Layout, NoSuchName, Received, Rights
from ._haul import TENSOR_TAG, Node, Peer, Region, Remote, Tensor, Transfer, layout_of
from ._inbox import (
    HEADER_MAX,
    HINT_LAYOUT,
    HINT_VERSION,
    REFUSALS,
    Offer,
    Status,
    bytes_of,
    code_of,
    fail,
    inbox_of,
    left,
    name_of,
    read_header,
    reply,
    write_offer,
)

_PORT = 7420  # of addresses without one
_HEADER = ".tensor"

_making = threading.Lock()
_node: Node | None = None


def default_node() -> Node:
    """The node of calls that are given none."""
    global _node
    with _making:
        if _node is None or _node.closed:
            _node = Node()
        return _node


def split_target(target: str) -> tuple[str, str]:
    """ADDRESS/NAME, as the command has it: the address of the node, and the name."""
    scheme, separator, rest = target.partition("://")
    if not separator:
        scheme, rest = "tcp", target
    if scheme in ("etcd", "etcds"):
        words = rest.split("/")
        node, name = "/".join(words[:3]), "/".join(words[3:]) or urllib.parse.unquote(words[-1])
    elif rest.startswith("/"):
        node, _, name = rest.rpartition("/")
    else:
        node, _, name = rest.partition("/")
    if not node or not name or scheme.startswith("etcd") and node.count("/") < 2:
        raise ValueError(f"invalid target {target!r}: expected ADDRESS/NAME or a haul.Peer")
    if scheme == "tcp" and ":" not in node.rpartition("]")[2]:
        node += f":{_PORT}"
    return f"{scheme}://{node}", name


def _region_of(memory: Region | Tensor) -> Region:
    return memory.region if isinstance(memory, Tensor) else memory


def _first_of(memory: Region | Tensor, layout: Layout) -> int:
    """Where the elements begin, as local offsets count."""
    return 0 if isinstance(memory, Tensor) else layout.offset


def _until(node: Node, timeout: float | None) -> float:
    return time.monotonic() + (node.timeout if timeout is None else timeout)


def _layout_of(tensor: Any) -> Layout:
    layout: Layout = tensor.layout if isinstance(tensor, (Region, Tensor)) else layout_of(tensor)
    dense = [math.prod(layout.shape[i + 1 :]) for i in range(len(layout.shape))]
    for length, stride, wanted in zip(layout.shape, layout.strides or dense, dense):
        if length > 1 and stride != wanted and 0 not in layout.shape:
            raise ValueError(
                "the tensor is not contiguous in C's order: pass a contiguous copy, as of "
                "numpy.ascontiguousarray(array) or tensor.contiguous()"
            )
    return layout


def _length_of(layout: Layout) -> int:
    return bytes_of(code_of(layout.dtype), layout.shape)


@contextlib.contextmanager
def _memory_of(node: Node, tensor: Any, length: int) -> Iterator[Region | Tensor | None]:
    """The memory of a tensor; None: it has no bytes."""
    if isinstance(tensor, (Region, Tensor)):
        if _region_of(tensor).node is not node:
            raise ValueError("the tensor is in a region of another node")
        yield tensor
    elif length == 0:
        yield None
    else:
        with node.wrap(tensor) as region:
            yield region


@contextlib.contextmanager
def _published(
    memory: Region | Tensor | None, name: str, rights: int, to: dict[str, int] | None
) -> Iterator[None]:
    if memory is None:
        yield
        return
    region = _region_of(memory)
    region.publish(name, rights, to=to)
    try:
        yield
    finally:
        with contextlib.suppress(Error):  # closed meanwhile
            region.unpublish(name)


def finish_first(moving: deque[Transfer]) -> None:
    moving[0].wait(math.inf)  # an interrupted one is still under way
    moving.popleft()


def settle(transfers: Iterable[Transfer]) -> None:
    """Cancels transfers, and waits until nothing uses their memory any more."""
    for transfer in transfers:
        transfer.cancel()
        with contextlib.suppress(Exception):  # there is an error already
            transfer.wait(math.inf)


def _finish(transfer: Transfer) -> None:
    """Waits until the transfer's own deadline: then nothing uses the memory any more."""
    with transfer:
        try:
            transfer.wait(math.inf)
        except BaseException:
            settle([transfer])
            raise


def send(
    tensor: Any,
    to: Peer | str,
    *,
    id: int = 0,
    node: Node | None = None,
    timeout: float | None = None,
) -> None:
    """Send a contiguous tensor: to a peer, or into a tensor that a process shares.

    tensor   what Node.wrap takes (numpy, PyTorch, buffers), or a Region or Tensor of the node
    to       a Peer, whose haul.receive takes it; or "ADDRESS/NAME" of a tensor that haul.share
             shares with WRITE: it has the same type and shape, and gets the elements
    id       for haul.receive there: a number from 0 to 2^64 - 1
    node     that connects to an address; None: one of this process for all such calls
    timeout  in seconds; None: the node's

    Blocks until the receiver has all of it. Meanwhile a peer may read the tensor's memory, or the
    whole region of a haul.Tensor. Raises ValueError for a tensor that is not contiguous or whose
    type haul does not have; Invalid (another type or shape is expected), LimitReached (its
    limit), Busy, PathBroke (it failed to read) for what the receiver refuses; AccessDenied (shared
    without WRITE), NoSuchName, TimedOut, PeerGone, and as Node.connect.
    """
    if not 0 <= id < 1 << 64:
        raise ValueError("invalid id: expected a number from 0 to 2^64 - 1")
    if isinstance(to, str):
        if id:
            raise ValueError("invalid id: a shared tensor has none")
        _send_into(tensor, to, _node_for(tensor, node), timeout)
    elif isinstance(to, Peer):
        _offer(tensor, to, id, timeout)
    else:
        raise TypeError(f"invalid to {to!r}: expected a haul.Peer or ADDRESS/NAME")


def _node_for(tensor: Any, node: Node | None) -> Node:
    if isinstance(tensor, (Region, Tensor)):
        return _region_of(tensor).node
    return node or default_node()


def _offer(tensor: Any, peer: Peer, id: int, timeout: float | None) -> None:
    node, inbox = peer.node, inbox_of(peer.node)
    until = _until(node, timeout)
    layout = _layout_of(tensor)
    length = _length_of(layout)
    with (
        _memory_of(node, tensor, length) as memory,
        inbox.expecting(peer) as (serial, status_of),
        _published(memory, name_of(serial), 0, {peer.identity or "*": Rights.READ}),
    ):
        peer.send(write_offer(serial, id, length, layout), tag=TENSOR_TAG, timeout=left(until))
        status = inbox.take(node, "send", until, status_of, peer.check)
    if status != Status.RECEIVED:
        code, text, hint = REFUSALS[status]
        fail(code, "send", peer.name, text, hint)


def _send_into(tensor: Any, to: str, node: Node, timeout: float | None) -> None:
    until = _until(node, timeout)
    address, name = split_target(to)
    layout = _layout_of(tensor)
    length = _length_of(layout)
    with (
        _memory_of(node, tensor, length) as memory,
        node.connect(address, timeout=left(until)) as peer,
        _shared(peer, name, "send", until) as (offer, remote),
    ):
        if (offer.dtype, offer.shape) != layout[:2]:
            text = f"the tensor is {layout.dtype} {layout.shape}, and the shared one "
            fail(Code.EINVAL, "send", to, text + f"{offer.dtype} {offer.shape}", HINT_LAYOUT)
        if memory is not None and length:
            pieces = [(_first_of(memory, layout), offer.offset, length)]
            _finish(remote.write(memory, pieces, timeout=left(until)))


def receive(
    source: Peer | Node | str,
    out: Any = None,
    *,
    id: int | None = 0,
    limit: int | None = None,
    place: str = "host",
    node: Node | None = None,
    timeout: float | None = None,
) -> Received:
    """Receive a tensor: one that a peer sends, or one that a process shares.

    source   a Peer, or a Node for all its peers, that haul.send sends to; or "ADDRESS/NAME" of a
             tensor that haul.share shares
    out      a writable contiguous tensor with the type and shape of the sent one, for the elements;
             None: a new region
    id       of haul.send; None: any. Tensors of one peer and id arrive in order
    limit    without `out`: the most bytes that are accepted
    place    of the new region: "host", "cuda:0"
    node     that connects to an address; None: one of this process for all such calls
    timeout  in seconds; None: the node's

    Returns a Received. Blocks until all elements are in place; after an error those of `out` are
    undefined. Raises Invalid (the type and shape of `out` differ), LimitReached (over the limit):
    the sender learns both; ValueError (an `out` that is read-only or not contiguous), NoSuchName
    (not shared), TimedOut, PeerGone, ProtocolViolated, and as Node.connect and Node.alloc.
    """
    if out is None and limit is None:
        raise ValueError("receive needs `out`, or a `limit` of bytes")
    if isinstance(source, str):
        if id:
            raise ValueError("invalid id: a shared tensor has none")
        return _receive_shared(source, out, limit, place, _node_for(out, node), timeout)
    if not isinstance(source, (Peer, Node)):
        raise TypeError(f"invalid source {source!r}: expected a haul.Peer, a Node or ADDRESS/NAME")
    return _receive_sent(source, out, id, limit, place, timeout)


def _receive_sent(
    source: Peer | Node,
    out: Any,
    id: int | None,
    limit: int | None,
    place: str,
    timeout: float | None,
) -> Received:
    node, peer = (source, None) if isinstance(source, Node) else (source.node, source)
    inbox, until = inbox_of(node), _until(node, timeout)
    with _wanted(node, out, limit, place) as wanted:
        while True:
            offer = inbox.take(
                node,
                "receive",
                until,
                lambda: inbox.pop_offer(peer, id),
                lambda: None if peer is None else peer.check(),
            )
            tensor = _accept(offer, node, wanted, until)
            if tensor is not None:
                return Received(tensor, offer.peer, offer.id)


def _receive_shared(
    source: str, out: Any, limit: int | None, place: str, node: Node, timeout: float | None
) -> Received:
    until = _until(node, timeout)
    address, name = split_target(source)
    with _wanted(node, out, limit, place) as wanted:
        peer = node.connect(address, timeout=left(until))
        with _shared(peer, name, "receive", until) as (offer, remote):
            refusal = _refusal(offer, wanted)
            if refusal:
                _, code, text, hint = refusal
                fail(code, "receive", source, text, hint)
            return Received(_read(offer, remote, node, wanted, until), peer, 0)


class _Wanted(NamedTuple):
    """What a call of receive expects, and where it goes."""

    out: Any  # or None
    layout: Layout | None  # of `out`
    memory: Region | Tensor | None  # of `out`; None if it is empty, too
    limit: int | None
    place: str  # without `out`

    def destination(self, node: Node, offer: Offer) -> tuple[Any, Region | Tensor | None, int]:
        """The tensor for the caller, its memory, and where its elements begin there."""
        if self.layout is not None:
            first = 0 if self.memory is None else _first_of(self.memory, self.layout)
            return self.out, self.memory, first
        region = node.alloc(max(offer.length, 1), self.place)
        tensor = region.tensor(offer.dtype, offer.shape)
        return tensor, tensor, 0


@contextlib.contextmanager
def _wanted(node: Node, out: Any, limit: int | None, place: str) -> Iterator[_Wanted]:
    if out is None:
        yield _Wanted(None, None, None, limit, place)
        return
    layout = _layout_of(out)
    with _memory_of(node, out, _length_of(layout)) as memory:
        if memory is not None and _region_of(memory).readonly:
            raise ValueError("the memory of `out` is read-only")
        yield _Wanted(out, layout, memory, limit, place)


def _accept(offer: Offer, node: Node, wanted: _Wanted, until: float) -> Any:
    """The received tensor; None if the sender has withdrawn it, or is gone."""
    refusal = _refusal(offer, wanted)
    if refusal:
        status, code, text, hint = refusal
        reply(offer, status, left(until))
        fail(code, "receive", offer.peer.name, text, hint)
    try:
        tensor = _fetch(offer, node, wanted, until)
    except BaseException as error:
        if isinstance(error, Error) and error.code in (Code.ENAME, Code.ESTALE, Code.EPEER):
            return None
        reply(offer, Status.FAILED, left(until))
        raise
    reply(offer, Status.RECEIVED, left(until))
    return tensor


def _refusal(offer: Offer, wanted: _Wanted) -> tuple[Status, Code, str, str] | None:
    """Why the tensor is not accepted: for the sender, and for the caller."""
    if offer.problem:
        return Status.INVALID, Code.EPROTO, offer.problem, HINT_VERSION
    if wanted.layout and (offer.dtype, offer.shape) != wanted.layout[:2]:
        ours = f"{wanted.layout.dtype} {wanted.layout.shape}"
        text = f"the tensor is {offer.dtype} {offer.shape}, and `out` is {ours}"
        return Status.OTHER_LAYOUT, Code.EINVAL, text, HINT_LAYOUT
    if wanted.limit is not None and offer.length > wanted.limit:
        text = f"the tensor has {offer.length} bytes, and the limit is {wanted.limit}"
        return Status.TOO_LARGE, Code.ELIMIT, text, "raise `limit`"
    return None


def _fetch(offer: Offer, node: Node, wanted: _Wanted, until: float) -> Any:
    if offer.length == 0:
        return wanted.destination(node, offer)[0]
    with offer.peer.lookup(name_of(offer.serial), timeout=left(until)) as remote:
        return _read(offer, remote, node, wanted, until)


def _read(offer: Offer, remote: Remote, node: Node, wanted: _Wanted, until: float) -> Any:
    if offer.length and offer.offset + offer.length > remote.length:
        text = "the tensor is longer than the memory that the sender published"
        fail(Code.EPROTO, "receive", offer.peer.name, text, HINT_VERSION)
    tensor, memory, first = wanted.destination(node, offer)
    if offer.length:
        assert memory is not None  # its tensor has as many bytes as the offer
        pieces = [(first, offer.offset, offer.length)]
        _finish(remote.read(memory, pieces, timeout=left(until)))
    return tensor


class Shared:
    """A tensor that other processes can read or write until it is closed, from haul.share.

    address  of the tensor, for haul.receive and haul.send: "ADDRESS/NAME"

    A context manager. It keeps the tensor's memory; without a reference to it, and at the end of
    the interpreter, it is withdrawn.
    """

    def __init__(self, address: str, owned: contextlib.ExitStack) -> None:
        self.address = address
        self._withdraw = weakref.finalize(self, owned.close)

    @property
    def closed(self) -> bool:
        """Whether it is withdrawn."""
        return not self._withdraw.alive

    def close(self) -> None:
        """Withdraw the tensor. Blocks until peers have ended their copies, at most the liveness."""
        self._withdraw()

    def __enter__(self) -> Shared:
        """Return it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        return f"<haul.Shared {self.address}{', closed' if self.closed else ''}>"


def share(
    tensor: Any,
    name: str = "tensor",
    rights: int = Rights.READ,
    *,
    to: dict[str, int] | None = None,
    node: Node | None = None,
) -> Shared:
    """Share a contiguous tensor, where it is: other processes read it, or write it.

    tensor  what Node.wrap takes (numpy, PyTorch, buffers), or a Region or Tensor of the node
    name    1 to 248 printable ASCII characters without blanks
    rights  of peers: READ for haul.receive, WRITE for haul.send, or both
    to      rights by identity instead, as of Region.publish
    node    that publishes it; None: one of this process for all such calls. One that does not
            listen yet listens on a Unix socket, for this user's processes

    Returns a Shared. The order of accesses is the callers' affair: a tensor that changes while a
    peer reads it is read half old, half new. Does not wait. Raises ValueError for a tensor that is
    not contiguous or whose type haul does not have; NameInUse, AccessDenied (WRITE of read-only
    memory), and as Region.publish.
    """
    node = _node_for(tensor, node)
    layout = _layout_of(tensor)
    length = _length_of(layout)
    header = write_offer(0, 0, length, layout)
    readers = to and dict.fromkeys(to, int(Rights.READ))
    with contextlib.ExitStack() as owned:
        memory = owned.enter_context(_memory_of(node, tensor, length))
        head = owned.enter_context(node.alloc(len(header)))
        with head.bytes() as view:
            view[:] = header
        owned.enter_context(_published(head if memory is None else memory, name, rights, to))
        owned.enter_context(_published(head, name + _HEADER, Rights.READ, readers))
        addresses = node.addresses or [node.listen(f"unix://@haul-{secrets.token_hex(8)}")]
        return Shared(f"{addresses[0]}/{name}", owned.pop_all())


@contextlib.contextmanager
def _shared(peer: Peer, name: str, call: str, until: float) -> Iterator[tuple[Offer, Remote]]:
    """A shared tensor: its header as an offer, and its memory.

    The header is published after the memory and withdrawn before it, and is read here after the
    memory was found. A read of one that was withdrawn fails, so the two belong together.
    """
    try:
        found = peer.lookup(name + _HEADER, timeout=left(until))
    except NoSuchName:
        text, hint = "no tensor is shared under this name", f"call haul.share(tensor, {name!r})"
        fail(Code.ENAME, call, f"{peer.name}/{name}", text, f"{hint} there")
    with found, peer.lookup(name, timeout=left(until)) as remote:
        length = min(found.length, HEADER_MAX)
        with peer.node.alloc(length) as region:
            _finish(found.read(region, [(0, 0, length)], timeout=left(until)))
            offer = read_header(peer, bytes(region))
        if offer.problem:
            fail(Code.EPROTO, call, f"{peer.name}/{name}", offer.problem, HINT_VERSION)
        yield offer, remote
