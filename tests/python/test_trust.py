# SPDX-License-Identifier: MIT
"""Nodes with keys: authentication, identities, and regions for some peers only."""

import os
import pathlib
import secrets
import tempfile

import haul
import support
from haul import READ, WRITE, Code


class Trust(support.Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.keys = {name: f"{name} {secrets.token_hex(32)}\n" for name in ("alice", "bob")}

    def file(self, *names, mode=0o600):
        path = self.folder / "-".join(names)
        path.write_text("".join(self.keys[name] for name in names))
        path.chmod(mode)
        return path

    def node(self, *names, **options):
        try:
            node = haul.Node(key=self.file(*names), **options)
        except haul.Error as error:
            if error.code == Code.ENOTSUP:
                self.skipTest(error.text)
            raise
        self.addCleanup(node.close)
        return node

    def test_authentication(self):
        server = self.node("alice", "bob")
        address = server.listen("tcp://127.0.0.1:0")
        region = server.alloc(4096)
        region.publish("both")
        region.publish("his", to={"bob": READ | WRITE})
        bob = self.node("bob", max_peers_each=2, max_lookups=9, peer_bytes=8 << 20, handshake=3)
        peer = bob.connect(address)
        self.assertEqual(peer.identity, "bob")
        self.assertEqual({one.name for one in peer.list()}, {"both", "his"})
        peer.lookup("his").write(bob.alloc(4096), only="tcp").wait()
        alice = self.node("alice", process_tls=True)
        stranger = alice.connect(address)
        self.assertEqual({one.name for one in stranger.list()}, {"both"})
        self.fails(Code.ENAME, stranger.lookup, "his")

    def test_peers_without_a_key(self):
        address = self.node("alice").listen("tcp://127.0.0.1:0")
        with haul.Node() as other:
            self.fails(Code.EAUTH, other.connect, address)
        self.fails(Code.EAUTH, self.node("bob").connect, address)

    def test_readable_key_files(self):
        for option in ("key", "directory_login"):
            self.fails(Code.EINSECURE, haul.Node, **{option: self.file("alice", mode=0o644)})
        self.fails(Code.EINVAL, haul.Node, key=os.fspath(self.folder / "none"))
        self.fails(Code.EINVAL, haul.Node, certificate=self.file("alice"))
        with self.assertRaises(TypeError):
            haul.Node(key=7)

    def test_invalid_grants(self):
        with haul.Node() as node:
            region = node.alloc(4096)
            self.fails(Code.EINVAL, region.publish, "r", to={})
            self.fails(Code.EINVAL, region.publish, "r", to={"": READ})
            self.fails(Code.EINVAL, region.publish, "r", to={"bob": 64})
            with self.assertRaises(TypeError):
                region.publish("r", to={1: READ})
            with self.assertRaises(TypeError):
                region.publish("r", to=["bob"])
            with self.assertRaises(ValueError):
                region.publish("r", to={f"key{i}": READ for i in range(257)})
            constant = node.wrap(b"constant")
            self.fails(Code.EACCESS, constant.publish, "r", to={"bob": READ | WRITE})


if __name__ == "__main__":
    support.main()
