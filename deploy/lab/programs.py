"""The test programs and the services that scenarios run: built on the host, used in the machines at the same
paths."""

import dataclasses
import json
import pathlib
import shlex
import shutil
import subprocess

import cache
import proc

CHECKOUT = cache.HERE.parent.parent

# Packages with tests of the device, and which of their tests: the test programs whose names hold the word, and
# of the others the tests whose names hold it.
TESTED = {"rowmill-verbs": "", "rowmill-port": "rdma"}
# Packages whose programs scenarios start.
SERVED = ["rowmill-rowmilld", "rowmill-cli", "rowmill-bench", "rowmill-control", "rowmill-tests"]

BUILD_LIMIT_S = 1500
COMPILE_LIMIT_S = 120

# Always the whole workspace, as `make tests` and `make archive` build it, and of its artifacts those that are wanted: cargo would
# choose other features for single packages, and build most of what these depend on once more.
ALL_TESTS = ["test", "--release", "--workspace", "--exclude", "rowmill-workspace", "--no-run"]
ALL_PROGRAMS = ["build", "--release", "--bins"]
ALL_LIBRARIES = ["build", "--release", "--lib", "--bins"]


@dataclasses.dataclass
class Built:
    folder: pathlib.Path
    # Folders that have to be visible in the machines.
    visible: list


def build(kinds, folder, log):
    """Builds what scenarios ask for (`tests`, `bins`, `c`) and lists it in `folder`."""
    built = Built(folder, [])
    for kind in ("tests", "bins", "c"):
        (folder / kind).mkdir(parents=True)
    if not kinds:
        return built
    if not shutil.which("cargo"):
        raise cache.CannotBuild("cargo is not on the PATH")
    workspace = json.loads(cargo(["metadata", "--no-deps", "--format-version=1"], log)[0])
    homes = {package["name"]: package["manifest_path"] for package in workspace["packages"]}
    if "tests" in kinds:
        tests(built, homes, choose(list(TESTED), homes), log)
    if "bins" in kinds:
        for found in artifacts(ALL_PROGRAMS, [homes[package] for package in choose(SERVED, homes)], log):
            place(built, folder / "bins" / found["target"]["name"], found, "")
    if "c" in kinds:
        examples(folder / "c", log)
    return built


def choose(wanted, known):
    for package in wanted:
        if package not in known:
            print(f"lab: the workspace has no package {package} yet: left out")
    return [package for package in wanted if package in known]


def tests(built, homes, packages, log):
    """Programs that hold tests; a package's own programs are among cargo's artifacts too, and left out."""
    for found in artifacts(ALL_TESTS, [homes[package] for package in packages], log):
        package = next(name for name in packages if homes[name] == found["manifest_path"])
        target, word = found["target"]["name"], TESTED[package]
        name = f"{package}.{'lib' if 'lib' in found['target']['kind'] else target}"
        if found["profile"]["test"]:
            place(built, built.folder / "tests" / name, found, "" if word in target else word)


def place(built, path, found, word):
    """A program that runs where cargo would run it, with the filter of its tests."""
    executable = pathlib.Path(found["executable"])
    home = pathlib.Path(found["manifest_path"]).parent
    arguments = f' {shlex.quote(word)}' if word else ""
    if path.parent.name == "tests":
        text = f'cd {shlex.quote(str(home))} && exec {shlex.quote(str(executable))}{arguments} "$@"'
    else:
        text = f'exec {shlex.quote(str(executable))} "$@"'
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    for needed in (executable.parent, home):
        if needed not in built.visible:
            built.visible.append(needed)


def examples(folder, log):
    """The examples in C, with the library that they are linked with and the stand-in for CUDA's driver beside them."""
    files = [pathlib.Path(file) for message in messages(ALL_LIBRARIES, log) for file in message.get("filenames", [])]
    archive = next(file for file in files if file.name == "librowmill_capi.a")
    shutil.copy(next(file for file in files if file.name == "libcuda_stand_in.so"), folder)
    run([CHECKOUT / "ffi/capi/install.sh", folder, archive.parent], log)
    for source in sorted((CHECKOUT / "ffi/capi/examples").glob("*.c")):
        run(["cc", "-std=gnu11", "-O1", "-I", folder / "include", source, "-o", folder / source.stem, "-L", folder / "lib",
             f"-Wl,-rpath,{folder}/lib", "-lrowmill", "-lpthread", "-ldl", "-lm"], log)


def run(command, log):
    with open(log, "ab") as messages:
        status = proc.run([str(part) for part in command], COMPILE_LIMIT_S, cwd=CHECKOUT, stdout=messages, stderr=messages)
    if status != 0:
        tail = pathlib.Path(log).read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        raise cache.CannotBuild("\n".join([f"{command[0]} failed; {log} ends with:", *tail]))


def artifacts(command, manifests, log):
    """The executables of the packages that have these manifests."""
    return [m for m in messages(command, log)
            if m.get("reason") == "compiler-artifact" and m.get("executable") and m["manifest_path"] in manifests]


def messages(command, log):
    lines = cargo([*command, "--message-format=json-render-diagnostics"], log)
    return [json.loads(line) for line in lines if line.startswith("{")]


def cargo(arguments, log):
    """The lines that cargo prints; its messages go to the log."""
    with open(log, "ab") as messages:
        process = proc.start(["cargo", *arguments], BUILD_LIMIT_S, cwd=CHECKOUT,
                             stdout=subprocess.PIPE, stderr=messages)
        try:
            said = process.stdout.read().decode()
        finally:
            status = proc.end(process, grace_s=3)
    if status != 0:
        tail = pathlib.Path(log).read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        raise cache.CannotBuild("\n".join([f"cargo {arguments[0]} failed; {log} ends with:", *tail]))
    return said.splitlines()
