# SPDX-License-Identifier: MIT
"""Exit statuses of the runner: a run without a test that passed or failed is a skip."""

import os
import subprocess
import sys

import support


CASE = """
class One(unittest.TestCase):
    {decorator}
    def test_one(self):
        {one}
    def test_two(self):
        {two}
"""
SKIP = "self.skipTest('no device')"


def case(one, two, decorator=""):
    return CASE.format(one=one, two=two, decorator=decorator)


class Runner(support.Case):
    def exits(self, status, source, text=""):
        child = subprocess.run(
            [sys.executable, "-c", f"import unittest, support\n{source}\nsupport.main()"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=support.PATIENCE,
        )
        self.assertEqual(child.returncode, status, child.stdout)
        self.assertIn(text, child.stdout)

    def test_a_module_that_is_not_installed(self):
        source = "def setUpModule(): support.module('haul_missing')\n"
        text = "has no haul_missing: sudo apt-get install python3-haul_missing"
        self.exits(77, source + case("pass", "pass"), text)

    def test_all_tests_skip(self):
        self.exits(77, case(SKIP, SKIP), ": no device")
        self.exits(77, case("pass", SKIP, "@unittest.skip('no GPU')"), ": no GPU")

    def test_no_tests(self):
        self.exits(77, "", "skipped -c: it has no tests")

    def test_some_tests_pass(self):
        self.exits(0, case("pass", SKIP), ": no device")
        self.exits(0, case("self.fail()", SKIP, "@unittest.expectedFailure"))

    def test_failures(self):
        self.exits(1, case("self.fail()", SKIP))
        self.exits(1, "def setUpModule(): 1 / 0\n" + case(SKIP, SKIP))


if __name__ == "__main__":
    support.main()
