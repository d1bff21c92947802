"""The server's supervisor: Flower's server and our app, brought back whenever they end before the run has.

The app continues from its checkpoint, which it writes every round, so that a crash costs the round it fell into. An
error that it would only meet again, because numbers diverged or the study is wrong, ends the supervisor too.
"""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import httpx

from pmfl.deploy.control import Control
from pmfl.deploy.endings import forget, left
from pmfl.deploy.journal import Journal, told
from pmfl.deploy.keys import write_secret
from pmfl.deploy.launch_check import checked
from pmfl.deploy.processes import Backoff, Child, Lock, Stopped, end_leftovers, wait_for_port
from pmfl.deploy.settings import Deployment, is_loopback
from pmfl.errors import EngineError, SpecError

READY = 180.0  # seconds Flower's server may take until it answers
LOOK = 0.2  # seconds between two looks at the children
PULSE = 10.0  # seconds between two questions whether Flower's server still answers, and for each answer
SILENT = 90.0  # seconds without an answer after which it is taken for hung
HOPELESS = 6  # ends of the app in a row, none of which a round was completed before
DAMAGED = 3  # ends of Flower's server in a row before it answered, after which it gets a new database


class Server:
    """Supervises DIR's server until the run is over or it is asked to stop."""

    def __init__(self, root: Path, stopped: Stopped) -> None:
        self.made = Deployment.open(root)
        self.root, self.stopped = root.resolve(), stopped
        self.lock = Lock(self.made.folder / "supervisor.lock", f"the server of {root}")
        self.journal = Journal(self.made.folder)
        self.superlink: Child | None = None
        self.app: Child | None = None
        self.environment: dict[str, str] = {}
        self.marker = f"{self.root}#server"

    def run(self) -> bool:
        """Whether the run came to its end; False: asked to stop before."""
        refuse_open(self.made)
        self.lock.take()
        try:
            return self._run()
        except BaseException as error:
            self.journal.state("failed", error=str(error))
            raise
        finally:
            self._end()
            self.lock.release()

    def _run(self) -> bool:
        ended = end_leftovers(self.marker)
        self.journal.tell("supervisor began", leftovers=ended)
        measured = checked(self.made)
        home = self.made.folder / "flower"
        self.environment = {"PMFL_BODY_LIMIT": str(measured["body_limit"]), "FLWR_HOME": str(home)}
        link_waits, app_waits, unanswered = Backoff(), Backoff(most=10.0), 0
        hopeless, seen = 0, self._progress()
        while not self.stopped:
            if self.app is None:
                forget(self.made.submitted)
                forget(self.made.ended)
                self.app = self._child("app", "launch_server_app")
            if self.superlink is None and not self._start_superlink():
                unanswered += 1
                if unanswered == DAMAGED:
                    self._set_database_aside()
                if unanswered > 2 * DAMAGED:
                    raise EngineError(
                        f"Flower's server ended {unanswered} times before it answered",
                        hint=f"its log is {self.made.folder / 'logs' / 'superlink.log'}",
                        code="E164",
                    )
                self.stopped.wait(link_waits.next(0.0))
                continue
            unanswered = 0
            code, lived = self._play()
            if code == 0:
                self._write_result()
                self.journal.state("finished")
                return True
            if self.stopped:
                break
            if (error := left(self.made.ended)) is not None:
                raise error
            hopeless = 0 if self._progress() != seen else hopeless + 1
            seen = self._progress()
            if hopeless >= HOPELESS:
                raise EngineError(
                    f"the app ended {hopeless} times without completing a round, last with exit code {code}",
                    hint=f"its log is {self.made.folder / 'logs' / 'app.log'}",
                    code="E163",
                )
            self.stopped.wait(app_waits.next(lived))
        self.journal.state("stopped")
        return False

    def _start_superlink(self) -> bool:
        server = self.made.server
        wait_for_port(server.bind, server.port, self.stopped)
        for name in ("control.secret", "runtime.secret"):
            write_secret(self.made.folder / name)
        self.superlink = self._child("superlink", "launch_superlink")
        ends = time.monotonic() + READY
        while self.superlink.running and time.monotonic() < ends and not self.stopped:
            if self._answers():
                with Control(self.made) as control:
                    control.register()
                return True
            self.stopped.wait(LOOK)
        self._drop("superlink", self.superlink)
        self.superlink = None
        return False

    def _play(self) -> tuple[int, float]:
        """Submit the app's run and watch it: its exit code (or that it was lost), and how long it lived."""
        assert self.superlink is not None
        assert self.app is not None
        began = time.monotonic()
        try:
            with Control(self.made) as control:
                left = control.stop_all()
                run = control.start()
        except (httpx.HTTPError, EngineError) as error:
            self.journal.tell("the run was not submitted", error=str(error))
            self._drop("superlink", self.superlink)
            self.superlink = None
            return 1, 0.0
        self.made.submitted.touch()
        self.journal.state("running", run=run, ended=left)
        heard = asked = time.monotonic()
        while self.app.running and self.superlink.running and not self.stopped:
            self.stopped.wait(LOOK)
            if (now := time.monotonic()) - asked > PULSE:
                heard, asked = (now if self._answers() else heard), time.monotonic()
                if asked - heard > SILENT:
                    self.journal.tell("Flower's server does not answer")
                    self.superlink.process.kill()
                    self.superlink.process.wait()
        code = self.app.code if self.superlink.running else None
        if not self.stopped and code is None and self.app.running:
            self.app.process.kill()  # its server has gone; what it has is in the checkpoint
        self._drop("app", self.app)
        self.app = None
        if not self.superlink.running:
            self._drop("superlink", self.superlink)
            self.superlink = None
        return (1 if code is None else code), time.monotonic() - began

    def _write_result(self) -> None:
        """Model and card. A run is not lost because they could not be written: the store has everything."""
        result = self._child("result", "result")
        while result.running and not self.stopped:
            self.stopped.wait(LOOK)
        self._drop("result", result)
        if result.code != 0:
            self.journal.tell("the result was not written", log=str(self.made.folder / "logs" / "result.log"))

    def _child(self, name: str, module: str) -> Child:
        arguments = ["-m", f"pmfl.deploy.{module}", str(self.root), self.marker]
        child = Child(name, arguments, self.made.folder / "logs" / f"{name}.log", self.environment)
        self.journal.child(name, child.pid)
        self.journal.tell(f"{name} began", pid=child.pid)
        return child

    def _drop(self, name: str, child: Child) -> None:
        """End a child if it has not ended, and note how."""
        by_itself = not child.running
        child.stop()
        self.journal.child(name, None)
        if by_itself and child.code != 0 and left(self.made.ended) is None:
            self.journal.restarted(name)
        self.journal.tell(f"{name} ended", code=child.code)

    def _end(self) -> None:
        for name, child in (("app", self.app), ("superlink", self.superlink)):
            if child is not None:
                self._drop(name, child)
        self.journal.tell("supervisor ended")

    def _answers(self) -> bool:
        insecure = self.made.server.insecure
        url = f"{'http' if insecure else 'https'}://{self.made.here}/health"
        try:
            return httpx.get(url, verify=_trusting(self.made), timeout=PULSE).status_code == 200
        except httpx.HTTPError:
            return False

    def _progress(self) -> int:
        """Rounds that the app has completed, as far as it says."""
        return int(told(self.made.status).get("round", 0))

    def _set_database_aside(self) -> None:
        """A database that Flower's server cannot start with is kept, not used: all that counts is in our results."""
        for file in self.made.folder.glob("superlink.sqlite*"):
            if not file.name.endswith(".damaged"):
                file.replace(file.with_name(f"{file.name}.damaged"))
        self.journal.tell("Flower's database was set aside")


def refuse_open(made: Deployment) -> None:
    """Without certificates, never beyond this machine."""
    if made.server.insecure and not is_loopback(made.server.bind):
        raise SpecError(
            f"insecure, and bound to {made.server.bind}",
            hint="without certificates the server listens on 127.0.0.1 only",
            code="S164",
        )


def _trusting(made: Deployment) -> ssl.SSLContext | bool:
    return False if made.server.insecure else ssl.create_default_context(cafile=str(made.ca))
