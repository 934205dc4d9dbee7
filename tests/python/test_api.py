# SPDX-License-Identifier: MIT
"""The public interface: docstrings, signatures, and the stub of the extension."""

import ast
import builtins
import enum
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

import haul
import haul._haul
import support

STUB = pathlib.Path(haul.__file__).with_name("_haul.pyi")
PROTOCOL = "__init__ __enter__ __exit__ __array__ __dlpack__ __dlpack_device__".split()
MODULES = [haul] + [
    importlib.import_module(f"haul.{module.name}")
    for module in pkgutil.iter_modules(haul.__path__)
    if not module.name.startswith("_") or module.name == "__main__"
]
OWNERS = (
    "Directory File Node Peer Region Remote Shared Transfer World broadcast.Receiver broadcast.Source"
).split()


def is_public(name):
    return not name.startswith("_") or name in PROTOCOL


def publics():
    """Path and object of every public function, class and method of the package."""
    for module in MODULES:
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and not isinstance(thing, enum.Enum):
                yield f"{module.__name__}.{name}", thing
            if inspect.isclass(thing):
                for inner in vars(thing):
                    if is_public(inner) and callable(getattr(thing, inner)):
                        yield f"{module.__name__}.{name}.{inner}", getattr(thing, inner)


def is_plain(thing):
    """Generated code of named tuples and enumerations."""
    return inspect.isclass(thing) and issubclass(thing, (tuple, enum.Enum))


class Documentation(support.Case):
    def test_everything_has_a_docstring_and_a_signature(self):
        count = 0
        for path, thing in publics():
            with self.subTest(path):
                count += 1
                if not path.endswith("__init__"):  # the class has it
                    self.assertTrue(thing.__doc__ and thing.__doc__.strip())
                if not inspect.isclass(thing) or thing is haul.Node:
                    inspect.signature(thing)
        self.assertGreater(count, 140)

    def test_only_nodes_and_plain_classes_can_be_created(self):
        for name in "Region Tensor Peer Remote Transfer Directory World".split():
            self.assertRaises(TypeError, getattr(haul, name))

    def test_docstrings_name_each_argument(self):
        for path, thing in publics():
            if is_plain(thing) or "__exit__" in path or (inspect.isclass(thing) and thing is not haul.Node):
                continue
            text = inspect.getdoc(thing)
            if path.endswith("__init__"):
                text = inspect.getdoc(self.class_of(path))
            if path in ("haul.Error.__init__", "haul.Shared.__init__"):
                continue  # haul alone creates these
            for name in inspect.signature(thing).parameters:
                if name != "self":
                    with self.subTest(path, argument=name):
                        self.assertRegex(text, rf"(?m)^{name}  |`{name}`|\b{name}\b")

    @staticmethod
    def class_of(path):
        module, kind = path.split(".")[:-2], path.split(".")[-2]
        return getattr(importlib.import_module(".".join(module)), kind)

    def test_docstrings_tell_the_unit_and_the_end_of_waits(self):
        for path, thing in publics():
            if is_plain(thing) or inspect.isclass(thing) or "_make" in path:
                continue
            parameters = inspect.signature(thing).parameters
            text = inspect.getdoc(thing) or ""
            with self.subTest(path):
                if "timeout" in parameters and "__init__" not in path:
                    self.assertRegex(text, r"\bseconds\b")
                    if path.split(".")[-1] not in ("fetch_add", "compare_swap", "register"):
                        self.assertTrue("TimedOut" in text or "as register" in text)
                if self.is_of_the_extension(path, thing):
                    self.assertRegex(text, r"Does not wait|[Bb]locks?\b|Raises? |Return")

    @staticmethod
    def is_of_the_extension(path, thing):
        return not inspect.isfunction(thing) and "__exit__" not in path

    def test_attributes_have_docstrings(self):
        for name in dir(haul._haul):
            kind = getattr(haul._haul, name)
            for inner, member in vars(kind).items() if inspect.isclass(kind) else ():
                if is_public(inner) and not callable(member):
                    with self.subTest(f"{name}.{inner}"):
                        self.assertTrue(member.__doc__)

    def test_modules_have_docstrings_and_names(self):
        for module in MODULES:
            self.assertTrue(module.__doc__, module)
            for name in module.__all__:
                self.assertTrue(hasattr(module, name), f"{module.__name__}.{name}")

    def test_errors_that_docstrings_name_exist(self):
        count = 0
        for path, thing in publics():
            sentences = re.findall(r"\bRaises? (.*?)\.(?:\s|$)", thing.__doc__ or "", re.S)
            for name in re.findall(r"\b[A-Z][a-z]+[A-Z]\w*|\bRefused\b", " ".join(sentences)):
                with self.subTest(path, name=name):
                    homes = (haul, builtins, sys.modules[path[: path.rindex(".")]]
                             if path.rsplit(".", 1)[0] in sys.modules else haul)
                    self.assertTrue(any(hasattr(home, name) for home in homes) or name == "OpenSSL")
                    count += 1
        self.assertGreater(count, 100)

    def test_owners_are_context_managers(self):
        """Whatever has close() is one, and says whether it is closed."""
        found = []
        for path, thing in publics():
            if inspect.isclass(thing) and hasattr(thing, "close"):
                with self.subTest(path):
                    self.assertTrue(hasattr(thing, "__enter__") and hasattr(thing, "__exit__"))
                    found.append(path)
        for name in OWNERS:
            self.assertIn(f"haul.{name}", found)

    def test_modules_need_no_import_of_their_own(self):
        code = "import haul; haul.safetensors.write, haul.reshard.plan, haul.cache.Cache, haul.aio, haul.broadcast; haul.nothing"
        end = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertIn("AttributeError: module 'haul' has no attribute 'nothing'", end.stderr)
        self.assertLessEqual({"aio", "broadcast", "cache", "reshard", "safetensors", "Node"}, set(dir(haul)))

    def test_all_names_are_exported(self):
        """__all__ has every public name but modules, each once, in order."""
        found = {name for name, thing in vars(haul).items() if not name.startswith("_")}
        modules = {name for name in found if inspect.ismodule(getattr(haul, name))}
        self.assertEqual(set(haul.__all__), found - modules)
        self.assertEqual(len(set(haul.__all__)), len(haul.__all__))


class Arguments(support.Case):
    """The C functions take the arguments that their signatures name."""

    def setUp(self):
        self.node = haul.Node()
        self.region = self.node.alloc(4096)
        self.region.publish("r", haul.READ | haul.WRITE)
        self.peer = self.node.connect(self.node.listen("tcp://127.0.0.1:0"))
        self.remote = self.peer.lookup("r")
        self.transfer = self.remote.write(self.region).wait()
        self.tensor = self.region.tensor("uint8", (8,))
        self.source = haul.broadcast.Source(self.node, "b")
        self.receiver = haul.broadcast.Receiver(self.node, self.node.addresses[0], "b")
        self.addCleanup(self.node.close)

    def objects(self):
        with open(__file__) as file:
            file = haul.File(file)
        return (self.node, self.region, self.peer, self.remote, self.transfer, self.tensor, file,
                self.source, self.receiver)  # fmt: skip

    def test_keywords(self):
        class Wrong:  # of the wrong type everywhere
            def __bool__(self):
                raise TypeError("wrong")

        count = 0
        for thing in self.objects():
            for name, member in vars(type(thing)).items():
                if not is_public(name) or not inspect.ismethoddescriptor(member):
                    continue
                bound = getattr(thing, name)
                for parameter in inspect.signature(bound).parameters.values():
                    if parameter.kind is parameter.POSITIONAL_ONLY:
                        continue
                    with self.subTest(f"{type(thing).__name__}.{name}", argument=parameter.name):
                        with self.assertRaises((TypeError, ValueError, AttributeError, ImportError)) as caught:
                            bound(**{parameter.name: Wrong()})
                        self.assertNotIn("invalid keyword", str(caught.exception))
                        self.assertNotIn("takes no keyword", str(caught.exception))
                        count += 1
                with self.subTest(f"{type(thing).__name__}.{name}"):
                    with self.assertRaises(TypeError):
                        bound(no_such_argument=1)
        self.assertGreater(count, 60)

    def test_the_node(self):
        names = list(inspect.signature(haul.Node).parameters)
        for name in names:
            with self.subTest(name), self.assertRaises((TypeError, ValueError)) as caught:
                haul.Node(**{name: [object()] if name not in self.flags() else self.wrong()})
            self.assertNotIn("invalid keyword", str(caught.exception))
        self.assertRaises(TypeError, haul.Node, no_such_argument=1)

    @staticmethod
    def flags():
        parameters = inspect.signature(haul.Node).parameters.values()
        return [parameter.name for parameter in parameters if parameter.default is False]

    @staticmethod
    def wrong():
        class Wrong:
            def __bool__(self):
                raise TypeError("wrong")

        return Wrong()


class Stub(support.Case):
    """_haul.pyi, against the extension, name by name."""

    @classmethod
    def setUpClass(cls):
        cls.names = {}
        for node in ast.parse(STUB.read_text()).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                cls.names[node.name] = node
            elif isinstance(node, ast.AnnAssign):
                cls.names[node.target.id] = node

    def members_of(self, name):
        """With those of its bases, by name."""
        node, found = self.names[name], {}
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self.names:
                found.update(self.members_of(base.id))
        for member in node.body:
            if isinstance(member, ast.FunctionDef):
                found[member.name] = member
            elif isinstance(member, ast.AnnAssign):
                found[member.target.id] = member
        return found

    @staticmethod
    def is_for_checkers(node):
        decorators = [item.id for item in getattr(node, "decorator_list", ()) if hasattr(item, "id")]
        return "type_check_only" in decorators

    def test_names(self):
        stub = {name for name, node in self.names.items() if not self.is_for_checkers(node)}
        runtime = {name for name in dir(haul._haul) if not name.startswith("_")}
        self.assertEqual(stub, runtime)

    def test_members(self):
        for name in dir(haul._haul):
            kind = getattr(haul._haul, name)
            if not inspect.isclass(kind):
                continue
            hidden = {"__doc__", "__module__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__",
                      "__ge__", "__hash__", "__repr__", "__release_buffer__"}  # fmt: skip
            runtime = set(vars(kind)) - hidden
            stub = set(self.members_of(name)) - {"__buffer__"}  # since Python 3.12
            with self.subTest(name):
                self.assertEqual(stub, runtime - {"__buffer__"})

    def test_signatures(self):
        count = 0
        for name in dir(haul._haul):
            thing = getattr(haul._haul, name)
            if inspect.isbuiltin(thing):
                self.same(name, self.names[name], thing)
            for inner, node in self.members_of(name).items() if inspect.isclass(thing) else ():
                if not isinstance(node, ast.FunctionDef) or inner in ("__buffer__", "__await__"):
                    continue
                decorators = [item.id for item in node.decorator_list]
                member = vars(thing)[inner]
                with self.subTest(f"{name}.{inner}"):
                    self.assertEqual("property" in decorators, not callable(member))
                    if "property" not in decorators:
                        self.same(f"{name}.{inner}", node, thing if inner == "__new__" else member)
                        count += 1
        self.assertGreater(count, 50)

    def same(self, path, node, thing):
        self.assertEqual(self.parameters_of(node), [
            (parameter.name, parameter.kind.name, parameter.default)
            for parameter in inspect.signature(thing).parameters.values()
            if parameter.name not in ("self", "module")
        ], path)  # fmt: skip

    @staticmethod
    def parameters_of(node):
        found = []
        positional = node.args.posonlyargs + node.args.args
        defaults = [None] * (len(positional) - len(node.args.defaults)) + node.args.defaults
        kinds = ["POSITIONAL_ONLY"] * len(node.args.posonlyargs)
        kinds += ["POSITIONAL_OR_KEYWORD"] * len(node.args.args) + ["KEYWORD_ONLY"] * len(node.args.kwonlyargs)
        everything = zip(positional + node.args.kwonlyargs, kinds, defaults + node.args.kw_defaults)
        for argument, kind, default in everything:
            if argument.arg not in ("self", "cls"):
                value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
                found.append((argument.arg, kind, value))
        return found

    def test_types_are_shipped(self):
        self.assertTrue(STUB.with_name("py.typed").exists())


if __name__ == "__main__":
    support.main()
