"""What runs a scenario's script: virtual machines, user-mode Linux, or the host itself. A machine is a process
with a limit, and a way to end it."""

import json
import os
import pathlib
import re
import shutil
import socket
import tempfile

import cache
import proc

# What booting may take, beyond a scenario's own limit.
BOOT_S = {"tcg": 60, "kvm": 20, "uml": 20, "nic": 0, "rxe": 0}


def text(path):
    """What a file holds that somebody is writing, or may never write."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def temporary():
    """A folder for a machine's own files. Takes those of drivers along that were killed."""
    for old in pathlib.Path(tempfile.gettempdir()).glob("rowmill-lab-*-*"):
        if not os.path.exists(f"/proc/{old.name.split('-')[2]}"):
            shutil.rmtree(old, ignore_errors=True)
    return pathlib.Path(tempfile.mkdtemp(prefix=f"rowmill-lab-{os.getpid()}-"))


class Machine:
    """One node. `out` is what its script printed, `log` what the machine itself printed."""

    def __init__(self, node, share):
        self.node, self.share = node, share
        self.mark = f"{share.parent.name}/{share.name}/{node}"
        self.out, self.log = share / f"out.{node}", share / f"machine.{node}.log"
        self.process = None
        self.over_limit = False

    def boot(self):
        raise NotImplementedError

    def begin(self, command, limit_s, environment=None, **options):
        marked = dict(os.environ, **(environment or {}), **{proc.MARK: self.mark})
        with open(self.log, "ab") as log:
            self.process = proc.start(command, limit_s, stdout=log, stderr=log, env=marked, **options)

    def ended(self):
        return proc.ended(self.process)

    def end(self):
        if self.process:
            by_itself = self.ended()
            status = proc.end(self.process)
            self.over_limit = by_itself and status in (124, -9)
            proc.end_marked(self.mark)

    def status(self):
        """What the script ended with, or None."""
        try:
            return int((self.share / f"rc.{self.node}").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def outcome(self):
        """What became of the scenario here, after the end."""
        status = self.status()
        if status == 0:
            return "ok"
        if status == 124 or self.over_limit:
            return "over its limit"
        if status is not None:
            return f"exit {status}"
        panic = re.search(r"Kernel panic - not syncing: (.*)", text(self.log))
        return "no result" + (f" (kernel panic: {panic[1]})" if panic else "")

    def reset(self):
        raise RuntimeError("only a machine with a kernel of its own can be reset")


class Virtual(Machine):
    """A virtual machine of QEMU. `link` is its end of the wire to the other one."""

    def __init__(self, node, share, accelerator, processors, memory, link, limit_s):
        super().__init__(node, share)
        self.accelerator, self.processors, self.memory = accelerator, processors, memory
        self.link, self.limit_s = link, limit_s
        self.monitor, self.greeted = None, False

    def boot(self):
        folder = cache.kernel()
        accelerated = {"tcg": ["-accel", "tcg,thread=multi", "-cpu", "max"], "kvm": ["-accel", "kvm", "-cpu", "host"]}
        self.monitor, theirs = socket.socketpair()
        given = [theirs.fileno()]
        command = [
            "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35",
            *accelerated[self.accelerator], "-smp", str(self.processors), "-m", self.memory,
            "-kernel", str(folder / "vmlinuz"), "-initrd", str(folder / "initrd.gz"), "-append",
            f"console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on rowmill.node={self.node}",
            "-serial", "stdio",
            "-chardev", f"socket,id=monitor,fd={theirs.fileno()}", "-mon", "chardev=monitor,mode=control",
            "-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=root,mount_tag=root",
            "-fsdev", f"local,id=share,path={str(self.share).replace(',', ',,')},security_model=none,multidevs=remap",
            "-device", "virtio-9p-pci,fsdev=share,mount_tag=share",
        ]
        if self.link:
            given.append(self.link.fileno())
            # host_mtu lets the guest have an MTU of 4500, which RoCE's largest path MTU wants.
            command += ["-netdev", f"stream,id=link,server=off,addr.type=fd,addr.str={self.link.fileno()}", "-device",
                        f"virtio-net-pci,netdev=link,host_mtu=9000,romfile=,mac=52:54:00:00:00:0{self.node}"]
        self.begin(command, self.limit_s, pass_fds=given)
        theirs.close()

    def reset(self):
        """Pulls the reset line, as a watchdog of the hardware would: no process is asked."""
        if not self.greeted:
            self.ask("qmp_capabilities")
            self.greeted = True
        # Without this a reset would be the end, as a guest's own is (-no-reboot). It can't be taken back at once:
        # the firmware, finding itself started again, does one more reset.
        self.ask("set-action", reboot="reset")
        self.ask("system_reset")

    def ask(self, command, **arguments):
        self.monitor.settimeout(10)
        self.monitor.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        said = b""
        while b'"return"' not in said:
            more = self.monitor.recv(4096)
            if not more or b'"error"' in more:
                raise RuntimeError(f"the monitor of machine {self.node} refuses {command}: {more.decode()}")
            said += more

    def end(self):
        if self.monitor:
            self.monitor.close()
        super().end()


class UserMode(Machine):
    """A user-mode Linux. It keeps its files in a folder of its own, which goes with it, and `link`, its end of the wire,
    for when it is reset."""

    def __init__(self, node, share, memory, link, limit_s):
        super().__init__(node, share)
        self.memory, self.link, self.limit_s = memory, link.dup(), limit_s
        self.folder = temporary()
        (self.folder / "share").symlink_to(self.share)

    def boot(self):
        shutil.copy(cache.HERE / "uml-init", self.folder / "init")
        (self.folder / "cpuinfo").write_bytes(pathlib.Path("/proc/cpuinfo").read_bytes())
        (self.folder / "seed").write_bytes(os.urandom(64))
        command = [
            str(cache.uml() / "linux"), "rootfstype=hostfs", "rootflags=/", "ro", f"init={self.folder}/init",
            f"mem={self.memory}", "con0=fd:0,fd:1", "con=null", "quiet",
            f"umid=node{self.node}", f"uml_dir={self.folder}/", f"rowmill.node={self.node}",
            f"vec0:transport=fd,fd={self.link.fileno()},mtu=4500,depth=128,mac=52:54:00:00:00:0{self.node}",
        ]
        # Its memory is a file that it runs code from.
        in_memory = os.path.isdir("/dev/shm") and not os.statvfs("/dev/shm").f_flag & os.ST_NOEXEC
        memory_at = "/dev/shm" if in_memory else str(self.folder)
        self.begin(command, self.limit_s, pass_fds=[self.link.fileno()],
                   environment={"TMPDIR": memory_at, "HOME": str(self.folder)})

    def reset(self):
        """Kills its kernel, which sends nothing more and is asked nothing, and boots it anew."""
        super().end()
        # It would take its name to be in use.
        shutil.rmtree(self.folder / f"node{self.node}", ignore_errors=True)
        self.boot()

    def end(self):
        super().end()
        self.link.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Host(Machine):
    """The scenario's script on the host itself, in a folder that goes with it."""

    SCRIPT = """
        bash "$ROWMILL_LAB/scenario" > "$ROWMILL_LAB_SHARE/out.$NODE" 2>&1
        rc=$?
        cd "$ROWMILL_LAB_SHARE"
        echo $rc > "rc.$NODE.tmp"
        mv "rc.$NODE.tmp" "rc.$NODE"
    """

    def __init__(self, node, share, environment, limit_s):
        super().__init__(node, share)
        self.environment, self.limit_s = environment, limit_s
        self.folder = temporary()

    def boot(self):
        self.begin(["bash", "-c", self.SCRIPT], self.limit_s, cwd=self.folder,
                   environment=self.environment | {"NODE": str(self.node), "BOOT": "1"})

    def end(self):
        super().end()
        shutil.rmtree(self.folder, ignore_errors=True)


def wire(kind):
    """The two ends of the wire between a pair of machines."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM if kind == "uml" else socket.SOCK_STREAM)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    return ends
