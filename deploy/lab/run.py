#!/usr/bin/env python3
"""The soft-RDMA lab. `run.py build` builds it, `run.py test` and `run.py bench` run scenarios; LAB.md tells more."""

import argparse
import datetime
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True  # the checkout stays as it is

import cache
import ground as grounds
import proc
import programs
import scenario as scenarios

# Folders of logs that are kept.
KEPT = 20


def logs():
    """A new folder for this run's logs."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or "target")
    runs = (programs.CHECKOUT / target).resolve() / "lab"
    runs.mkdir(parents=True, exist_ok=True)
    for old in sorted(path for path in runs.iterdir() if path.is_dir())[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    folder = runs / f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
    folder.mkdir()
    return folder


def build(arguments):
    began = time.monotonic()
    print(f"lab: kernel and initrd of the virtual machines: {cache.kernel()}")
    if arguments.without_uml:
        print("lab: user-mode Linux is left out")
    else:
        print(f"lab: user-mode Linux: {cache.uml()}")
    print(f"lab: ready after {time.monotonic() - began:.1f} s")
    return 0


def picked(arguments):
    every = [scenarios.read(path) for path in sorted(arguments.scenarios.glob("*.sh"))]
    return [s for s in every if s.kind == arguments.command and re.search(arguments.filter, s.name)]


def run(arguments):
    chosen = picked(arguments)
    if not chosen:
        print(f"error: no scenario of {arguments.scenarios} matches {arguments.filter!r}", file=sys.stderr)
        return 2
    folder = logs()
    os.environ[proc.MARK] = folder.name
    print(f"lab: logs are in {folder}")
    runs = []
    try:
        cache.packages("rdma")
        built = programs.build({kind for s in chosen for kind in s.programs}, folder / "programs", folder / "cargo.log")
        for one in chosen:
            runs.append(run_one(one, folder, built, arguments.ground))
    except cache.CannotBuild as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        show(runs, folder)
    return 0 if all(result.passed for result, _ in runs) else 1


def run_one(one, folder, built, forced):
    """What became of a scenario, and the run; None where there is no ground for it."""
    try:
        ground, refused = grounds.choose(one.topology, forced)
    except grounds.NoGround as error:
        print(f"lab: {one.name}: no ground: {error}")
        return scenarios.Result(one.name, "-", f"no ground: {error}", 0), None
    print(f"lab: {one.name} ({one.topology}) on {ground.kind}: {ground.why}")
    for why in refused:
        print(f"     not {why}")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if ground.on_host and os.geteuid() != 0 and locked != resource.RLIM_INFINITY:
        print(f"     only {locked >> 20} MiB of memory may be locked (ulimit -l): deploy/HOST.md says how to raise it")
    started = scenarios.Run(one, ground, folder / one.name, built)
    result = started.go()
    print(f"lab: {one.name}: {result.outcome}, {result.seconds:.1f} s")
    return result, started


def read_figures(folder):
    """The figures of all scenarios; a machine that was ended may have written half a line."""
    figures = []
    for path in sorted(folder.glob("*/figures.json")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                figures.append(json.loads(line))
            except ValueError:
                print(f"lab: {path}: not a figure: {line}")
    return figures


def show(runs, folder):
    figures = read_figures(folder)
    if figures:
        with open(folder / "figures.json", "w", encoding="utf-8") as all_figures:
            all_figures.writelines(json.dumps(figure) + "\n" for figure in figures)
        print(f"\n{'case':<56} {'metric':<16} {'value':>12} unit")
        for figure in figures:
            beside = f", {figure['against']} {figure['against_value']:.6g}, ratio {figure['ratio']:.3f}" \
                if figure["ratio"] is not None else ""
            print(f"{figure['case']:<56} {figure['metric']:<16} {figure['value']:>12.6g} {figure['unit']}{beside}")
    # Last of all that is long: who sees the end of the log sees why.
    for result, one in runs:
        if one and not result.passed:
            one.show_tails()
    if runs:
        print(f"\n{'scenario':<16} {'ground':<7} {'seconds':>8}  outcome")
        for result, _ in runs:
            print(f"{result.name:<16} {result.ground:<7} {result.seconds:>8.1f}  {result.outcome}")
    left = proc.marked(folder.name)
    if left:
        print(f"error: processes left behind: {left}")
    print(f"lab: logs are in {folder}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build kernels")
    building.add_argument("--without-uml", action="store_true", help="leave user-mode Linux out, which takes minutes")
    for name in ("test", "bench"):
        running = commands.add_parser(name, help=f"run the scenarios of kind {name}")
        running.add_argument("--filter", default="", metavar="REGEX", help="run those whose name matches")
        running.add_argument("--ground", choices=grounds.ALL, help="run there or not at all")
        running.add_argument("--scenarios", type=pathlib.Path, default=cache.HERE / "scenarios", metavar="FOLDER")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)

    def stop(number, _):
        # What ends the machines must not be stopped by a second Ctrl-C.
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, stop)
    try:
        return build(arguments) if arguments.command == "build" else run(arguments)
    except cache.CannotBuild as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stopped:
        print("lab: stopped", file=sys.stderr)
        return 128 + (stopped.args[0] if stopped.args else signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
