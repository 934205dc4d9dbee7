# SPDX-License-Identifier: MIT
"""`make html` has a page for every man page, every page of the guide and every module of the Python package,
there a place for every public name, and no link leads nowhere.

pages.py SOURCE [PACKAGE]

PACKAGE is the folder of the Python package; without it the pages have no reference of it.
"""

import enum
import html.parser
import importlib
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

source = pathlib.Path(sys.argv[1])
package = sys.argv[2] if len(sys.argv) > 2 else None
missing = [tool for tool in ("mandoc", "lowdown") if not shutil.which(tool)]
if missing:
    print(f"skipped make html: {', '.join(missing)} missing (tools/deps --packages)")
    sys.exit(77)


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.tags = [], {"", "top"}, {}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if attributes.get("id"):
            self.anchors.add(attributes["id"])
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


with tempfile.TemporaryDirectory(prefix="haul-html-") as folder:
    folder = pathlib.Path(folder)
    subprocess.run(
        [source / "tools/html", folder],
        env={**os.environ, "PYTHONPATH": str(package or folder / "none")},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    pages = {path.relative_to(folder): Page(path) for path in folder.rglob("*.html")}

failures = []
wanted = {pathlib.Path("man", path.name + ".html") for path in (source / "man").iterdir()}
wanted |= {pathlib.Path("docs", path.stem + ".html") for path in (source / "docs").glob("*.md")}
failures += [f"there is no {path}" for path in sorted(wanted - pages.keys())]
modules = []
if package:
    sys.dont_write_bytecode = True
    sys.path.insert(0, package)
    for name in ("haul", "haul.aio", "haul.broadcast", "haul.cache", "haul.lmcache", "haul.safetensors", "haul.sglang"):
        modules.append(importlib.import_module(name))
for module in modules:
    page = pages.get(pathlib.Path("python", f"{module.__name__}.html"))
    if page is None:
        failures.append(f"there is no page of {module.__name__}")
        continue
    for name in module.__all__:
        wanted_anchors = {f"{module.__name__}.{name}"}
        thing = getattr(module, name)
        if inspect.isclass(thing) and not issubclass(thing, (tuple, enum.Enum, Exception)):
            wanted_anchors |= {f"{module.__name__}.{name}.{one}" for one in vars(thing) if one[0] != "_"}
        failures += [f"{module.__name__} has no #{one}" for one in sorted(wanted_anchors - page.anchors)]
links = 0
for path, page in sorted(pages.items()):
    if not page.tags.get("h1"):
        failures.append(f"{path} has no heading")
    for link in page.links:
        at = urllib.parse.urlsplit(link)
        if at.scheme:
            continue
        links += 1
        target = pathlib.Path(os.path.normpath(path.parent / at.path)) if at.path else path
        if target not in pages:
            failures.append(f"{path}: a link leads to {link}")
        elif urllib.parse.unquote(at.fragment) not in pages[target].anchors:
            failures.append(f"{path}: {target} has no #{at.fragment}")
counts = f"{len(pages)} pages, {len(modules)} of them of the Python package, {links} links"
print("\n".join([*failures, f"{counts}, {len(failures)} failed"]))
sys.exit(bool(failures))
