"""On what a scenario runs: the first of a real device, soft-RoCE of the host, virtual machines with KVM, and
virtual machines in software."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import platform

import cache
import proc

ALL = ("nic", "rxe", "kvm", "tcg", "uml")
# The host's own soft-RoCE device, while a scenario runs on it.
HOST_NETDEV, HOST_RXE, HOST_ADDRESS = "rowmill-lab", "rowmill_lab", "10.77.9.1"


class NoGround(Exception):
    """Why nothing can be run."""


@dataclasses.dataclass
class Ground:
    kind: str
    why: str
    device: str = "rxe0"
    netdev: str = ""
    address: str = ""
    hardware: bool = False

    @property
    def emulated(self):
        return self.kind == "tcg"

    @property
    def on_host(self):
        return self.kind in ("nic", "rxe")


def read(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def device():
    """The first active RDMA device of the host whose netdev has an address: (device, netdev, address), or why
    there is none."""
    folder = pathlib.Path("/sys/class/infiniband")
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    if not names:
        return None, "no device in /sys/class/infiniband"
    shown = proc.output(["ip", "-json", "address"])
    addresses = {link["ifname"]: [a["local"] for a in link["addr_info"] if a["family"] == "inet"]
                 for link in json.loads(shown or "[]")}
    why = []
    for name in names:
        for port in sorted((folder / name / "ports").iterdir()):
            netdev = read(port / "gid_attrs/ndevs/0")
            if "ACTIVE" not in read(port / "state"):
                why.append(f"{name} port {port.name} is not active")
            elif not addresses.get(netdev):
                why.append(f"{name} port {port.name} has no IPv4 address")
            else:
                return (name, netdev, addresses[netdev][0]), ""
    return None, "; ".join(why)


def nic():
    found, why = device()
    if not found:
        return None, why
    name, netdev, address = found
    hardware = (pathlib.Path("/sys/class/infiniband") / name / "device").exists()
    what = "device" if hardware else "software device"
    return Ground("nic", f"the host has the {what} {name} on {netdev}", name, netdev, address, hardware), ""


def rxe():
    if os.geteuid() != 0:
        return None, "soft-RoCE on the host needs root"
    if not os.path.isdir("/sys/module/rdma_rxe") and proc.output(["modprobe", "rdma_rxe"]) is None:
        return None, f"no module rdma_rxe for the host's kernel {platform.release()}"
    proc.output(["modprobe", "rdma_ucm"])
    return Ground("rxe", "the host's kernel has rdma_rxe", HOST_RXE, HOST_NETDEV, HOST_ADDRESS), ""


def kvm():
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return None, "no access to /dev/kvm"
    folder = cache.kernel()
    about = [platform.release(), read("/proc/sys/kernel/random/boot_id"), str(folder),
             proc.output(["qemu-system-x86_64", "--version"]) or ""]
    known = cache.root() / f"kvm-{hashlib.sha256(repr(about).encode()).hexdigest()[:20]}"
    with cache.locked("kvm"):
        if not known.exists():
            for old in cache.root().glob("kvm-*"):
                old.unlink()
            known.write_text(probe(folder), encoding="utf-8")
    said = known.read_text(encoding="utf-8")
    if said:
        return None, f"KVM boots no guest ({said}; seen once since the host's start)"
    return Ground("kvm", "KVM boots guests"), ""


def probe(folder):
    """Nothing if KVM boots a guest within 10 s, else what became of it."""
    said = cache.root() / "kvm-probe.log"
    with open(said, "wb") as log:
        status = proc.run(["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                           "-M", "q35", "-accel", "kvm", "-cpu", "host", "-m", "512M",
                           "-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.gz"),
                           "-append", "console=ttyS0 quiet panic=-1 rowmill.probe", "-serial", "stdio"],
                          10, stdout=log, stderr=log)
    text = said.read_text(encoding="utf-8", errors="replace")
    said.unlink()
    if "the probe has booted" in text:
        return ""
    errors = [line for line in text.splitlines() if line.startswith("qemu-system")]
    return errors[0] if errors else f"nothing after 10 s, exit {status}"


def tcg():
    cache.kernel()
    return Ground("tcg", "QEMU emulates the processor"), ""


def uml_refused():
    """Why user-mode Linux can't run here, or nothing. It gives a program's registers back as far as it knows them, which Linux refuses where
    there are more (`ptrace set fp regs failed`: the first program ends, and the machine with it)."""
    has_amx = " amx_tile" in read("/proc/cpuinfo")
    return "this CPU has AMX, whose registers user-mode Linux does not know" if has_amx else ""


def uml():
    if uml_refused():
        return None, uml_refused()
    cache.uml()
    return Ground("uml", "user-mode Linux: user code at native speed"), ""


def choose(topology, forced):
    """The ground for a topology, and why the better ones were not taken."""
    order = {"loopback": (nic, rxe, kvm, tcg), "pair": (kvm, tcg), "uml-pair": (nic, uml)}[topology]
    refused = []
    for find in order:
        if forced and find.__name__ != forced:
            continue
        found, why = find()
        if found and topology == "uml-pair" and find is nic and not (found.hardware or forced):
            found, why = None, f"{found.why}, which is slower than user-mode Linux"
        if found:
            return found, refused
        refused.append(f"{find.__name__}: {why}")
    raise NoGround("; ".join(refused) or f"{topology} does not run on {forced}")


@contextlib.contextmanager
def prepared(ground):
    """Sets the host's soft-RoCE device up and takes it away again. One at a time: two such devices in one
    network namespace don't work."""
    if ground.kind != "rxe":
        yield
        return
    with open(cache.root() / "rxe.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove = ["ip", "link", "delete", HOST_NETDEV]
        proc.output(remove)
        try:
            for command in (["ip", "link", "add", HOST_NETDEV, "type", "dummy"],
                            ["ip", "link", "set", HOST_NETDEV, "mtu", "4500", "up"],
                            ["ip", "address", "add", f"{HOST_ADDRESS}/24", "dev", HOST_NETDEV],
                            ["rdma", "link", "add", HOST_RXE, "type", "rxe", "netdev", HOST_NETDEV]):
                if proc.output(command) is None:
                    raise NoGround(f"{' '.join(command)} failed")
            yield
        finally:
            proc.output(["rdma", "link", "delete", HOST_RXE])
            proc.output(remove)
