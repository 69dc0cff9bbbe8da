"""A scenario: a script, what its head says of it, and one run of it."""

import collections
import dataclasses
import pathlib
import re
import shlex
import shutil
import time

import cache
import ground as grounds
import machines
from machines import text

TOPOLOGIES = {"loopback": 1, "pair": 2, "uml-pair": 2}
PATIENCE_S, PATIENCE_EMULATED_S = 20, 120


@dataclasses.dataclass
class Scenario:
    path: pathlib.Path
    topology: str
    limit_s: int
    limit_emulated_s: int
    kind: str = "test"
    memory: str = ""
    programs: tuple = ()

    @property
    def name(self):
        return self.path.stem

    @property
    def nodes(self):
        return TOPOLOGIES[self.topology]


def read(path):
    """What the comments at a script's head say: `# lab-KEY: VALUE`."""
    text = path.read_text(encoding="utf-8")
    said = dict(re.findall(r"^# lab-([a-z]+): *(.*?) *$", text, re.MULTILINE))
    unknown = set(said) - {"topology", "limit", "kind", "memory", "programs"}
    limits = [int(limit) for limit in said.get("limit", "").split()]
    if unknown or said.get("topology") not in TOPOLOGIES or len(limits) not in (1, 2) \
            or said.get("kind", "test") not in ("test", "bench"):
        raise ValueError(f"{path}: the head must name a topology ({', '.join(TOPOLOGIES)}), a limit (seconds, "
                         f"and if they differ those under emulation), and nothing unknown {sorted(unknown)}")
    return Scenario(path, said["topology"], limits[0], limits[-1], said.get("kind", "test"),
                    said.get("memory", ""), tuple(said.get("programs", "").split()))


@dataclasses.dataclass
class Result:
    name: str
    ground: str
    outcome: str
    seconds: float

    @property
    def passed(self):
        return self.outcome == "ok"


class Run:
    """One run of a scenario on a ground; its folder is the share."""

    def __init__(self, scenario, ground, share, programs):
        self.scenario, self.ground, self.share, self.programs = scenario, ground, share, programs
        self.limit_s = scenario.limit_emulated_s if ground.emulated else scenario.limit_s
        self.machines = []
        # By machine: boots seen, and bytes of its output.
        self.booted, self.read = collections.Counter(), collections.Counter()
        self.began = self.spoke = time.monotonic()

    def go(self):
        self.prepare()
        try:
            with grounds.prepared(self.ground):
                try:
                    self.start()
                    self.watch()
                finally:
                    for machine in self.machines:
                        machine.end()
            outcome = self.outcome()
        except grounds.NoGround as error:
            outcome = str(error)
        self.show_progress()
        return Result(self.scenario.name, self.ground.kind, outcome, time.monotonic() - self.began)

    def environment(self, share):
        patience = PATIENCE_EMULATED_S if self.ground.emulated else PATIENCE_S
        return {
            "ROWMILL_LAB": f"{share}/lab",
            "ROWMILL_LAB_SCENARIO": self.scenario.name,
            "ROWMILL_LAB_GROUND": self.ground.kind,
            "ROWMILL_LAB_SHARE": str(share),
            "ROWMILL_CHECKOUT": str(cache.HERE.parent.parent),
            "ROWMILL_PROGRAMS": str(self.programs.folder),
            "ROWMILL_TEST_PATIENCE": str(patience),
            "RUST_BACKTRACE": "1",
        }

    def prepare(self):
        """Writes what the machines read: their settings, the library, the script."""
        lab = self.share / "lab"
        lab.mkdir(parents=True)
        for name in ("guest", "lib.sh"):
            shutil.copy(cache.HERE / name, lab / name)
        shutil.copy(self.scenario.path, lab / "scenario")
        netdev = {"uml": "vec0"}.get(self.ground.kind, "eth0" if self.scenario.nodes == 2 else "dummy0")
        visible = [cache.HERE.parent.parent, self.share.parent, *self.programs.visible]
        settings = [f"LAB_LIMIT={self.limit_s}", f"LAB_NODES={self.scenario.nodes}", f"LAB_NETDEV={netdev}",
                    f"LAB_VISIBLE=({shlex.join(str(path) for path in visible)})"]
        settings += [f"export {key}={shlex.quote(value)}" for key, value in self.environment("/run/share").items()]
        (lab / "settings").write_text("\n".join(settings) + "\n", encoding="utf-8")

    def start(self):
        kind, share, count = self.ground.kind, self.share, self.scenario.nodes
        # The outer limit, for a machine that doesn't come up or hangs as a whole.
        limit_s = self.limit_s + machines.BOOT_S[kind] + 20
        memory = self.scenario.memory or ("2G" if count == 1 else "1G")
        ends = machines.wire(kind) if count == 2 and not self.ground.on_host else (None, None)
        for node in range(1, count + 1):
            if self.ground.on_host:
                device = {"ROWMILL_RDMA_ADDRESS": self.ground.address, "ROWMILL_RDMA_PEER": self.ground.address,
                          "ROWMILL_LAB_DEVICE": self.ground.device, "ROWMILL_LAB_NETDEV": self.ground.netdev}
                if self.ground.kind == "rxe":
                    device["ROWMILL_RDMA_LAB"] = "1"
                machine = machines.Host(node, share, self.environment(share) | device, self.limit_s)
            elif kind == "uml":
                machine = machines.UserMode(node, share, memory, ends[node - 1], limit_s)
            else:
                processors = 2 if count == 1 else 1
                machine = machines.Virtual(node, share, kind, processors, memory, ends[node - 1], limit_s)
            self.machines.append(machine)
            machine.boot()
        for end in ends:
            if end:
                end.close()

    def watch(self):
        """Until all machines have ended: shows what the script says, and does what it asks for."""
        while not all(machine.ended() for machine in self.machines):
            self.show_progress()
            for machine in self.machines:
                request = self.share / f"request.reset.{machine.node}"
                if request.exists():
                    self.reset(machine, request)
            # A machine whose partner failed has nothing to wait for but its own limit.
            if any(machine.ended() and machine.status() != 0 for machine in self.machines):
                self.let_go(5)
                return
            time.sleep(0.05)

    def reset(self, machine, request):
        print(f"lab: resetting machine {machine.node}")
        try:
            machine.reset()
            request.unlink()
        except (RuntimeError, OSError) as error:
            print(f"lab: {error}")
            request.rename(f"{request}.refused")

    def let_go(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(machine.ended() for machine in self.machines):
            time.sleep(0.05)

    def tell(self, what):
        self.spoke = time.monotonic()
        print(f"  {self.spoke - self.began:6.1f} s  {what}")

    def show_progress(self):
        for machine in self.machines:
            node = machine.node
            boots = text(self.share / f"boots.{node}").count("\n")
            if boots > self.booted[node]:
                self.booted[node] = boots
                self.tell(f"machine {node} has booted" + " again" * (boots > 1))
            for line in self.new_lines(machine):
                if line.startswith("== "):
                    self.tell(f"{node}: {line[3:]}")
        if time.monotonic() - self.spoke > 30:
            self.tell(f"goes on; its limit is {self.limit_s} s")

    def new_lines(self, machine):
        try:
            with open(machine.out, "rb") as out:
                out.seek(self.read[machine.node])
                new = out.read()
        except OSError:
            return []
        whole = new[:new.rfind(b"\n") + 1]
        self.read[machine.node] += len(whole)
        return whole.decode(errors="replace").splitlines()

    def outcome(self):
        wrong = [f"machine {one.node}: {outcome}" for one in self.machines if (outcome := one.outcome()) != "ok"]
        return "; ".join(wrong) or "ok"

    def show_tails(self, lines=30):
        """The ends of what the machines' kernels said, then of what the scripts did, which tells more."""
        for path in [machine.log for machine in self.machines] + [machine.out for machine in self.machines]:
            tail = text(path).splitlines()[-lines:]
            if tail:
                print(f"---- the end of {path}")
                print("\n".join(tail))

