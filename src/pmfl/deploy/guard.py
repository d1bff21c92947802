"""Keeps supervisors going: `pmfl deploy server`, `node` and `up` start them through here, and bring them back.

A supervisor is a process of its own, so that one that crashes or is killed can be started again by its parent; what it
had started ends with it, and the next one continues. Should the parent be killed too, an init system brings it back
(deploy/systemd), or whoever started it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pmfl.deploy.processes import GRACE, Backoff, Stopped
from pmfl.errors import PmflError

LOOK = 0.2  # seconds between two looks
REFUSED = (2, 3, 4)  # exit codes of errors that a new start would only repeat
FINISHED, STOPPED = 0, 10  # how a supervisor ends: the run is over; it was asked to end


class Guarded:
    """One supervisor, brought back when it dies."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = [sys.executable, "-m", "pmfl.deploy.guard", *arguments]
        self.waits = Backoff(most=10.0)
        self.process: subprocess.Popen[bytes] | None = None
        self.began = self.again = 0.0

    def look(self) -> int | None:
        """Start it if it is not there; its exit code once it has ended for good."""
        now = time.monotonic()
        if self.process is None:
            if now >= self.again:
                environment = {**os.environ, "PMFL_PARENT": str(os.getpid())}
                self.process = subprocess.Popen(self.arguments, env=environment, start_new_session=True)
                self.began = now
            return None
        code = self.process.poll()
        if code is None or code in (FINISHED, STOPPED, *REFUSED):
            return code
        self.process, self.again = None, now + self.waits.next(now - self.began)
        return None

    def stop(self) -> None:
        """End it politely, then for good."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(2.5 * GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def guard(supervisors: Mapping[str, Sequence[str]], leader: str, stopped: Stopped) -> int:
    """Keep all of them going until the leader has ended for good, or this process is asked to: then end them all."""
    guarded = {name: Guarded(arguments) for name, arguments in supervisors.items()}
    try:
        while not stopped:
            for name, one in guarded.items():
                code = one.look()
                if code is not None and (name == leader or code in REFUSED):
                    return code
            stopped.wait(LOOK)
        return STOPPED
    finally:
        for one in guarded.values():
            if one.process is not None and one.process.poll() is None:
                one.process.terminate()
        for one in guarded.values():
            one.stop()


def supervise(arguments: Sequence[str], stopped: Stopped) -> int:
    """Be a supervisor: `server DIR` or `node DIR CLIENT`."""
    kind, root = arguments[0], Path(arguments[1])
    if kind == "server":
        from pmfl.deploy.supervise_server import Server

        return FINISHED if Server(root, stopped).run() else STOPPED
    from pmfl.deploy.supervise_node import NodeSupervisor

    NodeSupervisor(root, int(arguments[2]), stopped).run()
    return STOPPED


def main(arguments: Sequence[str]) -> int:
    """A supervisor as a process."""
    from pmfl.deploy.processes import die_with_parent

    die_with_parent(int(os.environ["PMFL_PARENT"]))
    try:
        return supervise(arguments, Stopped().listen())
    except PmflError as error:
        sys.stderr.write(f"error[{error.code}]: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
