# SPDX-License-Identifier: MIT
"""`make html` has a page for every man page and every page of the guide, and no link leads nowhere.

pages.py SOURCE
"""

import html.parser
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

source = pathlib.Path(sys.argv[1])
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
    subprocess.run([source / "tools/html", folder], check=True, stdout=subprocess.DEVNULL)
    pages = {path.relative_to(folder): Page(path) for path in folder.rglob("*.html")}

failures = []
wanted = {pathlib.Path("man", path.name + ".html") for path in (source / "man").iterdir()}
wanted |= {pathlib.Path("docs", path.stem + ".html") for path in (source / "docs").glob("*.md")}
failures += [f"there is no {path}" for path in sorted(wanted - pages.keys())]
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
print("\n".join([*failures, f"{len(pages)} pages, {links} links, {len(failures)} failed"]))
sys.exit(bool(failures))
