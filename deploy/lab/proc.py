"""Processes that end: each has a limit of its own, a session of its own, and ends with the driver."""

import os
import shutil
import signal
import subprocess
import time

# Set for everything that is started, so that what a run left behind can be told from the rest.
MARK = "ROWMILL_LAB_RUN"


def start(command, limit_s, **options):
    """Starts `command` in a session of its own. It gets SIGTERM after `limit_s` or when the driver dies, and
    SIGKILL 3 s later."""
    ending = ["setpriv", "--pdeathsig", "TERM", "timeout", "-k", "3", str(int(limit_s))]
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen(ending + command, start_new_session=True, **options)


def ended(process):
    """Whether the process has ended. It is not waited for yet, so its number is still its own."""
    if process.returncode is not None:
        return True
    seen = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return seen is not None


def end(process, grace_s=0):
    """Ends the process and whatever is left of its group, and returns its exit status."""
    if process.returncode is None:
        if grace_s and not ended(process):
            os.killpg(process.pid, signal.SIGTERM)
            until = time.monotonic() + grace_s
            while not ended(process) and time.monotonic() < until:
                time.sleep(0.05)
        # The group is still the process's own, since it has not been waited for.
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def run(command, limit_s, **options):
    """Runs a command to its end; returns its exit status, 124 if it was over its limit."""
    process = start(command, limit_s, **options)
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    finally:
        status = end(process, grace_s=3)
    return status


def output(command, limit_s=30):
    """What a command prints, or None if it fails or isn't there."""
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                              timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def marked(mark):
    """The processes whose environment carries a mark that begins so, but for this one."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as environment:
                words = environment.read().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(f"{MARK}={mark}".encode()) for word in words):
            found.append(int(entry))
    return found


def end_marked(mark):
    """Ends what left its group: user-mode Linux and services make themselves sessions of their own."""
    until = time.monotonic() + 3
    while (left := marked(mark)) and time.monotonic() < until:
        for number in left:
            try:
                os.kill(number, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
