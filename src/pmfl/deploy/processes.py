"""Processes of a deployment: children never outlive their parent, logs stay small, a folder has one supervisor."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from pmfl.errors import EngineError, StoreError

LOG_BYTES = 4_000_000  # of a log file; the one before is kept beside it
GRACE = 8.0  # seconds a process may take to end when asked
_PR_SET_PDEATHSIG = 1

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel end this process when its parent ends, however that ends. Call it first thing."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:  # it ended before we had asked
        os._exit(1)


class Child:
    """A module of ours running as a process of its own, its output in a log of bounded size."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log, self.began = name, log, time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **QUIET, **environment, "PMFL_PARENT": str(os.getpid())},
            start_new_session=True,  # Ctrl-C is for the supervisor, which ends its children in order
        )
        assert self.process.stdout is not None
        self._pump = threading.Thread(target=copy_log, args=(self.process.stdout, log), daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it is there."""
        return self.process.poll() is None

    @property
    def lived(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    @property
    def code(self) -> int | None:
        """How it ended: an exit code, or minus the number of a signal."""
        return self.process.poll()

    def stop(self, grace: float = GRACE) -> None:
        """End it: politely, then for good."""
        if self.running:
            self.process.terminate()
            try:
                self.process.wait(grace)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._pump.join(2.0)


def copy_log(stream: IO[bytes], log: Path, limit: int = LOG_BYTES) -> None:
    """Append a process's output to a log; a full log takes the place of the one before. A full disk loses lines,
    never the process."""
    for line in iter(stream.readline, b""):
        try:
            if log.exists() and log.stat().st_size > limit:
                log.replace(log.with_name(f"{log.name}.1"))
            with log.open("ab") as file:
                file.write(line)
        except OSError:
            continue
    stream.close()


class Lock:
    """One supervisor a folder. The kernel lets go of it when its holder ends, so it is never stale."""

    def __init__(self, file: Path, what: str) -> None:
        self.file, self.what = file, what
        self._handle: int | None = None

    def take(self) -> None:
        """Hold it until this process ends."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise EngineError(
                f"{self.what} is running already (process {self.holder()})",
                hint="`pmfl deploy status DIR` shows it; `pmfl deploy stop DIR` ends it",
                code="E160",
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._handle = handle

    def holder(self) -> int | None:
        """The process that holds it now, if any does."""
        try:
            handle = os.open(self.file, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return int(os.read(handle, 20) or b"0") or None
        finally:
            os.close(handle)
        return None

    def release(self) -> None:
        """Let go of it."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class Stopped:
    """Becomes true when this process is asked to end; waiting on it ends at once then."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def listen(self) -> Stopped:
        """Take the polite signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._asked)
        return self

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Ask it ourselves."""
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Rest; true if asked to end meanwhile."""
        return self._event.wait(seconds)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self._event.set()


class Backoff:
    """How long to wait before the next try: longer each time, short again after a while without trouble."""

    def __init__(self, first: float = 0.5, most: float = 30.0, calm: float = 60.0) -> None:
        self.first, self.most, self.calm = first, most, calm
        self.failures = 0

    def next(self, lived: float) -> float:
        """Seconds to wait after something that lived so long has ended."""
        self.failures = 1 if lived > self.calm else self.failures + 1
        return float(min(self.most, self.first * 2 ** (self.failures - 1)))


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(host: str, port: int, stopped: Stopped, seconds: float = 15.0) -> None:
    """Return when a server could listen there. A process of ours that is ending gets the time it needs."""
    ends = time.monotonic() + seconds
    while not port_is_free(host, port):
        if stopped or time.monotonic() > ends:
            raise StoreError(
                f"port {port} of {host} is taken by another program",
                hint=f"end it, or choose another: `pmfl deploy init DIR --port {port + 1}`",
                code="R171",
            )
        stopped.wait(0.2)


def leftovers(marker: str, alive: Callable[[int], bool] = lambda pid: True) -> list[int]:
    """Processes of ours that serve the folder ``marker`` but whose supervisor has gone."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        ours = any(word.startswith("pmfl.deploy.") for word in words) and marker in words
        if ours and int(entry.name) != os.getpid() and alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def end_leftovers(marker: str) -> list[int]:
    """End what an earlier supervisor of the same folder has left behind."""
    found = leftovers(marker)
    for pid in found:
        with _gone():
            os.kill(pid, signal.SIGKILL)
    return found


class _gone:
    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        return kind is not None and issubclass(kind, ProcessLookupError)
