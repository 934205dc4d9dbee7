# SPDX-License-Identifier: MIT
"""Instances of vLLM on loopback or in network namespaces, as the tests of this folder need them."""

import itertools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def skip(why):
    print(f"skipped vLLM: {why}")
    sys.exit(77)


try:
    import torch  # noqa: F401

    import model
except ImportError as error:
    skip(f"{error} (tools/deps --vllm)")

VOCABULARY = model.VOCABULARY
BLOCK = 32  # tokens, the least of vLLM's attention on CPUs
OPTIONS = {
    "dtype": "float32",
    "max_model_len": 1024,
    "block_size": BLOCK,
    "num_gpu_blocks_override": 512,  # of the CPU's, here
    "max_num_seqs": 64,
    "enforce_eager": True,
    "enable_prefix_caching": False,
}
numbers = itertools.count()
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def run(*command, environment=None):
    ended = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {ended.stdout}")
    return ended.stdout.strip()


class Instance:
    def __init__(self, log, command, environment):
        self.log = log
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"an instance ended: status {self.process.wait()}")
        return json.loads(line)

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def add(self, prompts, tokens, found=None):
        """Starts requests. `found` is what prefill() of the other instance returned."""
        requests = [
            {"name": str(next(numbers)), "prompt": prompt, "tokens": tokens, "kv": None}
            for prompt in prompts
        ]
        for request, one in zip(requests, found or []):
            request.update(one)
        self.ask("add", requests)
        return [request["name"] for request in requests]

    def finish(self, names):
        ended = self.ask("finish")
        return [ended[name] for name in names]

    def generate(self, prompts, tokens, found=None):
        return self.finish(self.add(prompts, tokens, found))

    def prefill(self, prompts):
        """By what another instance finds the KV cache of each prompt. Both requests have one name."""
        wanted = {"kv": {"do_remote_decode": True, "do_remote_prefill": False}}
        names = self.add(prompts, 1, [wanted] * len(prompts))
        return [{"name": name, "kv": one["kv"]} for name, one in zip(names, self.finish(names))]

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        self.process.kill()
        self.process.wait()

    def logged(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def must_have_logged(self, text):
        assert text in self.logged(), f"its log has no '{text}'"


class Rig:
    """A context: at its end no process, namespace or file is left."""

    def __init__(self, way, policy):
        self.way, self.policy = way, policy
        self.work = tempfile.mkdtemp(prefix="haul-vllm-")
        self.instances = []
        self.namespaces = {}

    def __enter__(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
        try:
            self.model = model.write(os.path.join(self.work, "model"))
            if self.way == "hosts":
                self.make_hosts()
            self.environment = self.make_environment()
        except BaseException:
            self.clean_up()
            raise
        return self

    def __exit__(self, kind, *_):
        for one in self.instances if kind else []:
            print(f"-- {os.path.basename(one.log)}", *one.logged().splitlines()[-40:], sep="\n")
        self.clean_up()

    def clean_up(self):
        for one in self.instances:
            one.end()
        for name in self.namespaces.values():
            subprocess.run(["ip", "netns", "delete", name], check=False)
        shutil.rmtree(self.work, ignore_errors=True)

    def make_hosts(self):
        if os.getuid() != 0 or not shutil.which("ip"):
            skip("two network namespaces need root and ip(8)")
        for role in ROLES:
            name = f"haul-{os.getpid()}-{role}"
            try:
                run("ip", "netns", "add", name)
            except RuntimeError as error:
                skip(error)
            self.namespaces[role] = name
            run("ip", "-n", name, "link", "set", "lo", "up")
        one, other = self.namespaces.values()
        run("ip", "link", "add", "wire", "netns", one, "type", "veth", "peer", "wire", "netns", other)
        for role, name in self.namespaces.items():
            run("ip", "-n", name, "address", "add", self.address(role) + "/24", "dev", "wire")
            run("ip", "-n", name, "link", "set", "wire", "up")

    def address(self, role):
        if self.way != "hosts":
            return "127.0.0.1"
        return {"prefill": "10.88.1.1", "decode": "10.88.1.2"}[role]

    def make_environment(self):
        """As haul-nixl(7) and vLLM's pages describe it."""
        environment = {
            **os.environ,
            "XDG_CACHE_HOME": self.work,
            "HAUL_PATHS": "map" if self.way == "map" else "tcp",
            "HAUL_NIXL_REPORT": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        if self.way == "hosts":
            environment["HAUL_KEY"] = os.path.join(self.work, "key")
            run(os.environ["HAUL"], "key", "new", environment["HAUL_KEY"])
        environment["NIXL_PLUGIN_DIR"] = run(
            sys.executable, "-m", "haul.nixl", environment=environment
        )
        return environment

    def start(self, role):
        options = dict(OPTIONS)
        options["kv_transfer_config"] = {
            "kv_connector": "NixlPushConnector" if self.way == "push" else "NixlConnector",
            "kv_role": ROLES[role],
            "kv_load_failure_policy": self.policy,
            "kv_connector_extra_config": {"backends": ["HAUL"]},
        }
        environment = {
            **self.environment,
            "VLLM_HOST_IP": self.address(role),
            "VLLM_NIXL_SIDE_CHANNEL_HOST": self.address(role),
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port() if self.way != "hosts" else 5600),
        }
        command = [sys.executable, os.path.join(HERE, "instance.py"), self.model, json.dumps(options)]
        if self.way == "hosts":
            command = ["ip", "netns", "exec", self.namespaces[role], *command]
        log = os.path.join(self.work, f"{role}-{len(self.instances)}.log")
        self.instances.append(Instance(log, command, environment))
        assert self.instances[-1].answer() == "ready"
        return self.instances[-1]


def free_port():
    """With the next one, too, below the ports that the kernel gives to connections."""
    while True:
        port = random.SystemRandom().randrange(20000, 30000, 2)
        try:
            for number in (port, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
            return port
        except OSError:
            continue
