# SPDX-License-Identifier: MIT
"""docs/python.md: every block is run, in order, in one folder and one namespace.

A `python` or `sh` block must print what the `text` block after it shows, in which "..." stands for any
text. The page has no other blocks. The python blocks run in a child, as one program.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import support

PAGE = support.REPOSITORY / "docs/python.md"
END = "<<end of a block>>"

# Runs the blocks that it reads from a file, and prints END after each.
PROGRAM = f"""
import json, subprocess, sys
names = {{"__name__": "__main__"}}
with open(sys.argv[1]) as file:
    blocks = json.load(file)
for language, source, line in blocks:
    sys.stdout.flush()
    if language == "sh":
        subprocess.run(["bash", "-euc", source], check=True)
    else:
        exec(compile("\\n" * line + source, {str(PAGE)!r}, "exec"), names)
    print({END!r}, flush=True)
"""


def blocks():
    """Language, content and line of each block."""
    text = PAGE.read_text()
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.M | re.S):
        yield match[1], match[2], text.count("\n", 0, match.start()) + 1


def matches(shown, printed):
    parts = (re.escape(part) for part in shown.split("..."))
    return re.fullmatch("(?s:.*?)".join(parts), printed) is not None


class Guide(support.Case):
    def setUp(self):
        support.module("numpy")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "bin").mkdir()
        command = pathlib.Path(os.environ["HAUL_BUILD"], "cmd/haul/haul")
        if not command.exists():
            self.skipTest(f"there is no {command}")
        (self.folder / "bin/haul").symlink_to(command)
        (self.folder / "bin/python3").symlink_to(sys.executable)

    def test_the_page(self):
        code, shown = [], []
        for language, content, line in blocks():
            if language == "text":
                self.assertEqual(shown[-1], "", f"line {line}: output of no block")
                shown[-1] = content
            else:
                self.assertIn(language, ("python", "sh"), f"line {line}: a block that is not run")
                code.append((language, content, line))
                shown.append("")
        self.assertGreater(len(code), 15)
        for (language, content, line), wanted, printed in zip(code, shown, self.run_all(code)):
            with self.subTest(line=line):
                self.assertTrue(
                    matches(wanted, printed),
                    f"{PAGE}:{line} prints\n{printed}and the page shows\n{wanted}",
                )

    def run_all(self, code):
        (self.folder / "blocks.json").write_text(json.dumps(code))
        ended = subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", "-c", PROGRAM, "blocks.json"],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path))),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=2 * support.PATIENCE,
        )
        self.assertEqual((ended.stderr, ended.returncode), ("", 0), ended.stdout)
        printed = ended.stdout.split(END + "\n")
        self.assertEqual(len(printed), len(code) + 1)
        return printed

    def test_the_first_program_is_short(self):
        language, content, _ = next(blocks())
        lines = [line for line in content.splitlines() if line.strip()]
        self.assertEqual((language, len(lines) <= 15), ("python", True), len(lines))
        self.assertIn("checksum=True", content)


class Comparison(support.Case):
    def test_outputs(self):
        self.assertTrue(matches("a ... b\n", "a 1\n2 b\n"))
        self.assertTrue(matches("...", ""))
        for shown in ("", "a\n", "b ... a\n", "a ... b"):
            self.assertFalse(matches(shown, "a 1 b\n"))


if __name__ == "__main__":
    support.main()
