#!/usr/bin/env python3
"""The lab's own tests: what fails is told, what hangs is ended, nothing is left behind, the cache is used.
Minutes; user-mode Linux takes part if it is built (`make lab`)."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True

import cache
import ground
import proc
import scenario

RUN = [sys.executable, str(cache.HERE / "run.py")]
# Whether user-mode Linux has been built, and can run.
UML = any(cache.root().glob("uml-*/linux")) and not ground.uml_refused()


def drive(name, *more):
    """The driver, running one of the scenarios for these tests."""
    return [*RUN, "test", "--scenarios", str(cache.HERE / "selftest"), "--filter", f"^{name}$", *more]


class Lab(unittest.TestCase):
    def setUp(self):
        logs = tempfile.TemporaryDirectory(prefix="rowmill-selftest-")
        self.addCleanup(logs.cleanup)
        self.logs = pathlib.Path(logs.name)
        self.environment = dict(os.environ, CARGO_TARGET_DIR=logs.name)
        self.mounts = self.mounted()

    def run_it(self, command, limit_s=150, **environment):
        began = time.monotonic()
        done = subprocess.run(command, env=self.environment | environment, stdout=subprocess.PIPE, text=True,
                              stderr=subprocess.STDOUT, timeout=limit_s, check=False)
        return done.returncode, done.stdout, time.monotonic() - began

    def assert_nothing_left(self, within_s=0):
        until = time.monotonic() + within_s
        while (left := self.left()) and time.monotonic() < until:
            time.sleep(0.1)
        self.assertEqual(left, [])
        self.assertEqual(self.mounted(), self.mounts)

    def mounted(self):
        """What is mounted where the lab might do it: elsewhere others come and go."""
        lines = pathlib.Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
        own = [self.logs, cache.root(), cache.HERE.parent.parent]
        return [line for line in lines if any(pathlib.Path(line.split()[1]).is_relative_to(place) for place in own)]

    def left(self):
        """Processes of any run whose logs are in this test's folder."""
        runs = self.logs / "lab"
        names = [run.name for run in runs.iterdir()] if runs.is_dir() else []
        return [number for name in names for number in proc.marked(name)]

    def test_failure_is_told_with_the_log(self):
        status, said, seconds = self.run_it(drive("fails"))
        self.assertEqual(status, 1, said)
        self.assertIn("machine 1: exit 3", said)
        self.assertIn("== machine 1 is here", said)
        self.assertLess(seconds, 55, "the partner is not waited for")
        self.assertEqual(said.count("lab: logs are in"), 2)
        self.assert_nothing_left()

    def test_hanging_is_ended_by_the_limit(self):
        for name in ["hangs"] + ["hangs-uml"] * UML:
            with self.subTest(name):
                status, said, _ = self.run_it(drive(name))
                self.assertEqual(status, 1, said)
                self.assertIn("machine 1: over its limit", said)
                self.assert_nothing_left()

    def test_death_of_a_kernel_is_told(self):
        status, said, seconds = self.run_it(drive("dies"))
        self.assertEqual(status, 1, said)
        self.assertIn("machine 1: no result (kernel panic: sysrq triggered crash)", said)
        self.assertLess(seconds, 55)
        self.assert_nothing_left()

    def test_interrupted_and_killed_drivers_leave_nothing(self):
        for name in ["hangs"] + ["hangs-uml"] * UML:
            for sent, expected in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
                with self.subTest(name, sent=sent):
                    with subprocess.Popen(drive(name), env=self.environment, stdout=subprocess.PIPE, text=True,
                                          stderr=subprocess.DEVNULL) as driver:
                        for line in driver.stdout:
                            if "has booted" in line:
                                break
                        self.assertNotEqual(self.left(), [])
                        driver.send_signal(sent)
                        driver.stdout.read()
                        self.assertEqual(driver.wait(), expected)
                    killed = sent == signal.SIGKILL
                    self.assert_nothing_left(within_s=6 if killed else 0)
                    # What a killed driver left the next one takes along.
                    folders = list(pathlib.Path(tempfile.gettempdir()).glob("rowmill-lab-*-*"))
                    self.assertEqual([f for f in folders if str(driver.pid) in f.name and not killed], [])

    def test_both_grounds_on_a_host(self):
        status, said, _ = self.run_it(drive("host"))
        self.assertEqual(status, 0, said)
        self.assertIn("nic and rxe", said)
        self.assert_nothing_left()

    @unittest.skipUnless(UML, "user-mode Linux is not built, or does not run here")
    def test_figures_of_two_machines(self):
        status, said, _ = self.run_it(drive("two"))
        self.assertEqual(status, 0, said)
        self.assertIn("machine 2 has booted again", said)
        figures = next((self.logs / "lab").glob("*/figures.json")).read_text(encoding="utf-8").splitlines()
        self.assertEqual(sorted(json.loads(line)["case"] for line in figures), ["two/node=1", "two/node=2"])
        self.assert_nothing_left()

    def test_second_build_is_from_the_cache(self):
        more = [] if UML else ["--without-uml"]
        self.assertEqual(self.run_it([*RUN, "build", *more])[0], 0)
        status, said, seconds = self.run_it([*RUN, "build", *more])
        self.assertEqual(status, 0, said)
        self.assertNotIn("building", said)
        self.assertLess(seconds, 3)

    def test_builds_at_the_same_time(self):
        with tempfile.TemporaryDirectory() as empty:
            command = [*RUN, "build", "--without-uml"]
            both = [subprocess.Popen(command, env=self.environment | {"ROWMILL_CACHE": empty}, stdout=subprocess.PIPE,
                                     text=True) for _ in range(2)]
            said = [one.communicate(timeout=120)[0] for one in both]
            self.assertEqual([one.returncode for one in both], [0, 0], said)
            self.assertEqual(sum("unpacking" in text for text in said), 1, said)
            folders = [path for path in (pathlib.Path(empty) / "lab").iterdir() if path.is_dir()]
            self.assertEqual([sorted(os.listdir(folder)) for folder in folders], [["initrd.gz", "vmlinuz"]])

    def test_unknown_scenarios_and_grounds(self):
        self.assertEqual(self.run_it(drive("nothing"))[0], 2)
        status, said, _ = self.run_it(drive("fails", "--ground", "uml"))
        self.assertEqual(status, 1)
        self.assertIn("pair does not run on uml", said)


class Pieces(unittest.TestCase):
    def test_heads(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.sh"
            path.write_text("# lab-topology: pair\n# lab-limit: 5 20\n# lab-programs: tests bins\n", encoding="utf-8")
            read = scenario.read(path)
            self.assertEqual((read.topology, read.nodes, read.limit_s, read.limit_emulated_s), ("pair", 2, 5, 20))
            self.assertEqual((read.kind, read.programs), ("test", ("tests", "bins")))
            for wrong in ("", "# lab-topology: pair\n", "# lab-topology: ring\n# lab-limit: 5\n",
                          "# lab-topology: pair\n# lab-limit: 5\n# lab-limits: 5\n"):
                path.write_text(wrong, encoding="utf-8")
                self.assertRaises(ValueError, scenario.read, path)

    def test_every_scenario_has_a_head(self):
        for path in (*cache.HERE.glob("scenarios/*.sh"), *cache.HERE.glob("selftest/*.sh")):
            self.assertLess(scenario.read(path).limit_s, 600)

    def test_processes_end(self):
        began = time.monotonic()
        self.assertEqual(proc.run(["sleep", "60"], 1), 124)
        self.assertEqual(proc.run(["bash", "-c", "trap '' TERM; while :; do sleep 0.1; done"], 1), -9)
        self.assertEqual(proc.run(["bash", "-c", "sleep 60 & exit 7"], 30), 7)
        self.assertLess(time.monotonic() - began, 12)

    def test_a_device_without_an_address_is_no_ground(self):
        found, why = ground.device()
        self.assertTrue(bool(found) != bool(why), (found, why))

    def test_a_failed_build_leaves_nothing(self):
        def build(folder):
            folder.mkdir()
            (folder / "half").touch()
            raise cache.CannotBuild("on purpose")

        with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stdout(io.StringIO()):
            before = os.environ.get("ROWMILL_CACHE")
            os.environ["ROWMILL_CACHE"] = empty
            try:
                self.assertRaises(cache.CannotBuild, cache.built, "x", ["1"], build)
                self.assertEqual([p.name for p in (pathlib.Path(empty) / "lab").iterdir() if p.suffix != ".lock"], [])
            finally:
                os.environ.pop("ROWMILL_CACHE")
                if before is not None:
                    os.environ["ROWMILL_CACHE"] = before


if __name__ == "__main__":
    unittest.main()
