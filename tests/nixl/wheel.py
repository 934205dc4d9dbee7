# SPDX-License-Identifier: MIT
"""The plugin in NIXL as its wheel ships it: two processes, each with an agent.

  wheel.py PLUGIN [PATHS]    with HAUL_NIXL_WHEEL, the folder that the wheel is installed in, if
                             Python does not find it by itself, and with HAUL, the command
"""

import atexit
import ctypes
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types

PLUGIN, PATHS = os.path.realpath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""
SIZE = 64 << 20
COUNT = 20000  # segments
STEP = 64  # bytes each
PATIENCE = 60  # seconds for what a busy machine may delay


def skip(why):
    print(f"skipped NIXL's wheel: {why}")
    sys.exit(77)


def set_up():
    """NIXL's modules, with a folder of its plugins and ours."""
    sys.path[:0] = [path for path in [os.environ.get("HAUL_NIXL_WHEEL")] if path]
    module = os.path.join(os.path.dirname(__file__), "../../integrations/python/haul/nixl.py")
    spec = importlib.util.spec_from_file_location("haul_nixl", module)
    helper = importlib.util.module_from_spec(spec)  # without the package, which needs its extension
    spec.loader.exec_module(helper)
    wheels = helper.wheels()
    if not wheels:
        skip("it is not installed (tools/deps --peers)")
    (package, _), plugins = next(iter(wheels.items()))
    if len(sys.argv) < 4:  # the target has the initiator's environment
        folder = tempfile.mkdtemp(prefix="haul-nixl-")
        atexit.register(shutil.rmtree, folder)
        os.environ["NIXL_PLUGIN_DIR"] = helper.make_folder(folder, plugins, PLUGIN)
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")  # failures are expected here
    try:
        import numpy  # noqa: F401
    except ImportError:
        skip("it needs numpy (sudo apt-get install python3-numpy)")
    try:
        import torch  # noqa: F401
    except ImportError:  # versions before 1.4 need it for its name alone
        sys.modules["torch"] = types.ModuleType("torch")
        sys.modules["torch"].Tensor = type("Tensor", (), {})
    try:
        return __import__(package + "._api", fromlist=["_api"])
    except ImportError as error:
        skip(f"this Python cannot import it: {error}")


api = set_up()


class Agent:
    """An agent with SIZE bytes of registered memory."""

    def __init__(self, name):
        self.nixl = api.nixl_agent(name, api.nixl_agent_config(backends=[], capture_telemetry=True))
        self.socket = f"unix://@haul-nixl-{os.getpid()}"
        parameters = {"paths": PATHS, "rails": "", "zero_copy": "0", "deadline": "60",
                      "listen": f"tcp://127.0.0.1:0,{self.socket}"}
        self.nixl.create_backend("HAUL", parameters)
        self.memory = ctypes.create_string_buffer(SIZE)
        self.address = ctypes.addressof(self.memory)
        self.registered = self.nixl.register_memory([(self.address, SIZE, 0, "")], "DRAM")

    def descriptors(self, address=None, length=SIZE):
        return self.nixl.get_xfer_descs([(address or self.address, length, 0)], "DRAM")

    def fill(self, byte):
        ctypes.memset(self.address, byte, SIZE)

    def holds(self, byte, length=SIZE):
        return self.memory.raw[:length] == bytes([byte]) * length

    def start(self, operation, peer, address, length=SIZE, notification=b""):
        handle = self.nixl.initialize_xfer(operation, self.descriptors(length=length),
                                           self.descriptors(address, length), peer, notification)
        self.nixl.transfer(handle)
        return handle

    def state(self, handle):
        """DONE, PROC or the name of an error."""
        try:
            return self.nixl.check_xfer_state(handle)
        except Exception as error:
            return type(error).__name__

    def wait(self, handle):
        until = time.monotonic() + PATIENCE
        state = "PROC"
        while state == "PROC":
            assert time.monotonic() < until, "a transfer does not end"
            state = self.state(handle)
        return state

    def move(self, *arguments, **options):
        handle = self.start(*arguments, **options)
        state = self.wait(handle)
        if state == "DONE":
            self.nixl.release_xfer_handle(handle)
        return state

    def receive(self):
        """The next notification: the sender and the text."""
        until = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < until, "no notification"
            for sender, texts in self.nixl.get_new_notifs().items():
                assert len(texts) == 1
                return sender, texts[0]


# The target, which follows the lines of its standard input.
def target(name):
    agent = Agent(name)
    print(agent.nixl.get_agent_metadata().hex(), agent.address, flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        answer = "ok"
        if command == "meet":
            agent.nixl.add_remote_agent(bytes.fromhex(words[0]))
        elif command == "fill":
            agent.fill(int(words[0]))
        elif command == "holds":
            answer = str(agent.holds(int(words[0])))
        elif command == "notified":  # the bytes are there as soon as the notification is
            sender, text = agent.receive()
            answer = f"{sender} {text.decode()} {agent.holds(int(words[0]))}"
        elif command == "notify":
            agent.nixl.send_notif(words[0], words[1].encode())
        elif command == "segments":
            want = b"".join(bytes([(COUNT - 1 - i) % 251]) * STEP for i in range(COUNT))
            answer = str(agent.memory.raw[:COUNT * STEP] == want)
        elif command == "deregister":
            agent.nixl.deregister_memory(agent.registered)
        print(answer, flush=True)
    os._exit(0)


class Target:
    """The other process."""

    def __init__(self, name):
        self.process = subprocess.Popen([sys.executable, __file__, *sys.argv[1:2], PATHS, name],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:  # NIXL logs there
            found = re.fullmatch(r"([0-9a-f]+) (\d+)\n", line)
            if found:
                self.metadata, self.address = bytes.fromhex(found[1]), int(found[2])
                return
        sys.exit("the target did not start")

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self):
        self.process.kill()
        self.process.wait()


def check_transfers(agent, peer):
    agent.fill(7)
    assert agent.move("WRITE", "target", peer.address, notification=b"seven") == "DONE"
    assert peer.ask("notified", 7) == "initiator seven True"
    peer.ask("fill", 9)
    assert agent.move("READ", "target", peer.address, notification=b"nine") == "DONE"
    assert agent.holds(9)
    assert peer.ask("notified", 9) == "initiator nine True"
    agent.nixl.send_notif("target", b"alone")
    assert peer.ask("notified", 9) == "initiator alone True"
    peer.ask("notify", "initiator", "back")
    assert agent.receive() == ("target", b"back")


def check_segments(agent, peer):
    for i in range(COUNT):
        ctypes.memset(agent.address + i * STEP, i % 251, STEP)

    def prepare(name, address):
        listed = [(address + i * STEP, STEP, 0) for i in range(COUNT)]
        return agent.nixl.prep_xfer_dlist(name, agent.nixl.get_xfer_descs(listed, "DRAM"))

    local, remote = prepare("NIXL_INIT_AGENT", agent.address), prepare("target", peer.address)
    indices = list(range(COUNT))
    handle = agent.nixl.make_prepped_xfer("WRITE", local, indices, remote, indices[::-1])
    for _ in range(2):  # a handle may be posted again
        agent.nixl.transfer(handle)
        assert agent.wait(handle) == "DONE"
    assert peer.ask("segments") == "True"
    agent.nixl.release_xfer_handle(handle)
    agent.nixl.release_dlist_handle(local)
    agent.nixl.release_dlist_handle(remote)


def check_local(agent):
    agent.fill(1)
    half = SIZE // 2
    ctypes.memset(agent.address, 2, half)
    assert agent.move("WRITE", agent.nixl.name, agent.address + half, length=half) == "DONE"
    assert agent.holds(2)


def check_telemetry(agent, peer):
    """NIXL's own telemetry has the transfers of the backend."""
    handle = agent.start("WRITE", "target", peer.address)
    assert agent.wait(handle) == "DONE"
    found = agent.nixl.get_xfer_telemetry(handle)
    assert (found.totalBytes, found.descCount) == (SIZE, 1)
    assert found.xferDuration >= found.postDuration
    agent.nixl.release_xfer_handle(handle)


def check_top(agent):
    """haul top shows what the agent has moved, and its peer."""
    command = os.environ.get("HAUL")
    if not command:
        print("without haul top: HAUL does not name the command")
        return
    shown = subprocess.run([command, "top", agent.socket, "--once", "--json", "--interval", "0.1"],
                           capture_output=True, text=True, timeout=PATIENCE)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["node"].startswith("initiator."), shown.stdout
    assert '"target.' in shown.stdout, shown.stdout


def check_files(agent):
    """Between memory and files of the agent, by path and by descriptor."""
    folder = tempfile.mkdtemp(prefix="haul-nixl-")
    atexit.register(shutil.rmtree, folder)
    path = os.path.join(folder, "file")

    def move(operation, device, count):
        step = SIZE // count
        places = [(i * step, step) for i in range(count)]
        memory = agent.nixl.get_xfer_descs(
            [(agent.address + at, length, 0) for at, length in places], "DRAM")
        file = agent.nixl.get_xfer_descs(
            [(at, length, device) for at, length in reversed(places)], "FILE")
        handle = agent.nixl.initialize_xfer(operation, memory, file, agent.nixl.name, b"moved")
        agent.nixl.transfer(handle)
        state = agent.wait(handle)
        if state == "DONE":
            assert agent.receive() == (agent.nixl.name, b"moved")
            agent.nixl.release_xfer_handle(handle)
        return state

    by_path = agent.nixl.register_memory([(0, SIZE, 1000, "rw,create:" + path)], "FILE")
    agent.fill(1)
    ctypes.memset(agent.address, 2, SIZE // 16384)
    assert move("WRITE", 1000, 16384) == "DONE"
    with open(path, "rb") as file:
        content = file.read()
        assert content == bytes([1]) * (SIZE - SIZE // 16384) + bytes([2]) * (SIZE // 16384)
        by_descriptor = agent.nixl.register_memory([(0, SIZE, file.fileno(), "")], "FILE")
        agent.fill(3)
        assert move("READ", file.fileno(), 1) == "DONE"
        assert agent.memory.raw == content
        try:
            assert move("WRITE", file.fileno(), 1) != "DONE"
        except Exception as error:
            print(f"a descriptor opened to read: {type(error).__name__}")
        agent.nixl.deregister_memory(by_descriptor)
    os.truncate(path, SIZE - 1)
    assert move("READ", 1000, 1) != "DONE"
    agent.nixl.deregister_memory(by_path)
    found = agent.nixl.query_memory([(0, 0, 0, path), (0, 0, 0, path + "x")], "HAUL", "FILE")
    assert found[0]["size"] == str(SIZE - 1) and found[1] is None


def check_cancel(agent, peer):
    """After the release no byte arrives."""
    for _ in range(5):
        peer.ask("fill", 3)
        agent.fill(4)
        handle = agent.start("WRITE", "target", peer.address)
        agent.nixl.release_xfer_handle(handle)
        peer.ask("fill", 5)
        time.sleep(0.05)
        assert peer.ask("holds", 5) == "True"
    assert agent.move("WRITE", "target", peer.address) == "DONE"
    assert peer.ask("holds", 4) == "True"


def check_death(agent, peer):
    """Each outstanding request ends with an error."""
    handles = [agent.start("WRITE", "target", peer.address) for _ in range(8)]
    peer.end()
    began = time.monotonic()
    states = [agent.wait(handle) for handle in handles]
    print(f"{states.count('DONE')} of {len(states)} done, the others {set(states) - {'DONE'}} "
          f"{time.monotonic() - began:.3f} s after the end of the peer")
    assert "nixlRemoteDisconnectError" in states or states.count("DONE") == len(states)
    try:
        handle = agent.start("WRITE", "target", peer.address)
        assert agent.wait(handle) != "DONE"
    except Exception as error:
        print(f"a write to it: {type(error).__name__}")


def forget(agent):
    try:
        agent.nixl.remove_remote_agent("target")
    except Exception:
        pass  # NIXL has forgotten it already


def check_restart(agent, stale):
    """An agent of the same name is another one; the metadata of the first leads nowhere."""
    forget(agent)
    peer = Target("target")
    peer.ask("fill", 6)
    agent.fill(8)
    agent.nixl.add_remote_agent(stale.metadata)
    try:
        assert agent.move("WRITE", "target", stale.address) != "DONE"
    except Exception as error:
        print(f"stale metadata: {type(error).__name__}")
    assert peer.ask("holds", 6) == "True"
    forget(agent)
    agent.nixl.add_remote_agent(peer.metadata)
    assert agent.move("WRITE", "target", peer.address) == "DONE"
    assert peer.ask("holds", 8) == "True"
    return peer


def check_deregistered(agent, peer):
    peer.ask("deregister")
    peer.ask("fill", 1)
    try:
        assert agent.move("WRITE", "target", peer.address) != "DONE"
    except Exception as error:
        print(f"deregistered memory: {type(error).__name__}")
    assert peer.ask("holds", 1) == "True"


def main():
    agent = Agent("initiator")
    assert agent.nixl.get_plugin_params("UCX")  # the wheel's own plugins load, too
    peer = Target("target")
    agent.nixl.add_remote_agent(peer.metadata)
    peer.ask("meet", agent.nixl.get_agent_metadata().hex())
    check_transfers(agent, peer)
    check_segments(agent, peer)
    check_local(agent)
    check_files(agent)
    check_telemetry(agent, peer)
    check_top(agent)
    check_cancel(agent, peer)
    check_death(agent, peer)
    peer = check_restart(agent, peer)
    check_deregistered(agent, peer)
    peer.end()
    print("ok", flush=True)


if len(sys.argv) > 3:
    target(sys.argv[3])
else:
    main()
