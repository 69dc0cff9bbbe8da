"""What the lab builds, in ${ROWMILL_CACHE:-~/.cache/rowmill}/lab, keyed by what it is built from."""

import contextlib
import fcntl
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess

import proc

KERNEL, SOURCE = "linux-image-amd64", "linux-source-6.1"

HERE = pathlib.Path(__file__).resolve().parent


class CannotBuild(Exception):
    """Why something can't be had; a sentence for the user."""


def root():
    folder = os.environ.get("ROWMILL_CACHE") or os.path.expanduser("~/.cache/rowmill")
    path = pathlib.Path(folder).resolve() / "lab"
    path.mkdir(parents=True, exist_ok=True)
    return path


def packages(*groups):
    """Installs groups of packages; does nothing where they are there."""
    # In the foreground: sudo may have to ask.
    if subprocess.run([str(HERE / "packages.sh"), *groups], check=False).returncode != 0:
        raise CannotBuild(f"the packages of {', '.join(groups)} can't be installed")


@contextlib.contextmanager
def locked(name):
    """Only one process at a time, of all that use this cache."""
    with open(root() / f"{name}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(name, parts, build):
    """The folder with what `build(folder)` made from `parts` (texts), made now if it isn't there yet."""
    key = hashlib.sha256()
    for part in parts:
        data = part.encode()
        key.update(len(data).to_bytes(8, "little") + data)
    folder = root() / f"{name}-{key.hexdigest()[:20]}"
    if folder.is_dir():
        return folder
    with locked(folder.name):
        if folder.is_dir():
            return folder
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        try:
            build(unfinished)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


@functools.lru_cache
def candidates():
    """Version and dependencies of the packages that apt would take, by name; asked for at once, since apt is
    slow to begin."""
    found = {}
    lists = sorted((path.name, path.stat().st_mtime_ns) for path in pathlib.Path("/var/lib/apt/lists").glob("*"))
    said = root() / f"apt-{hashlib.sha256(repr(lists).encode()).hexdigest()[:20]}"
    if not said.exists():
        for old in root().glob("apt-*"):
            old.unlink()
        said.write_text(proc.output(["apt-cache", "show", "--no-all-versions", KERNEL, SOURCE]) or "", encoding="utf-8")
    asked = said.read_text(encoding="utf-8")
    for paragraph in asked.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line)
        if "Package" in fields:
            found[fields["Package"]] = (fields["Version"], fields.get("Depends", ""))
    return found


def debian(package):
    """The version and the dependencies of the package that apt would take."""
    if package not in candidates():
        proc.run(["apt-get", "update", "-qq"], 300)
        candidates.cache_clear()
    if package not in candidates():
        raise CannotBuild(f"apt knows no package {package}")
    return candidates()[package]


def text(name):
    return (HERE / name).read_text(encoding="utf-8")


def step(command, limit_s):
    if proc.run(command, limit_s) != 0:
        raise CannotBuild(f"{' '.join(command)} failed")


def kernel():
    """The folder with `vmlinuz` and `initrd.gz` of the virtual machines."""
    packages("qemu", "rdma")
    version, depends = debian(KERNEL)
    package = depends.split()[0]

    def build(folder):
        print(f"lab: unpacking {package} {version} and building its initrd")
        step([str(HERE / "kernel.sh"), str(folder), package, version], 300)

    return built("kernel", [package, version, text("init"), text("modules"), text("kernel.sh")], build)


def uml():
    """The folder with `linux`, the user-mode Linux."""
    packages("uml", "rdma")
    version, _ = debian(SOURCE)

    def build(folder):
        print(f"lab: building user-mode Linux of {SOURCE} {version}, some 4 minutes on two cores")
        step([str(HERE / "uml.sh"), str(folder), version], 3600)

    return built("uml", [version, text("uml.fragment"), text("uml.sh")], build)
