"""Flower's real processes on this machine: started on free ports, ended by their ids."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pmfl
import pmfl.deploy
from pmfl.deploy.settings import Deployment

APP = Path(pmfl.deploy.__file__).parent / "app"
BIN = Path(sys.executable).parent
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    "OMP_NUM_THREADS": "1",
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def until(what: Callable[[], bool], seconds: float, why: str) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, why
        time.sleep(0.1)


class Loopback:
    """A SuperLink without keys, and nodes of a deployment."""

    def __init__(self, deployment: Deployment, logs: Path) -> None:
        self.deployment, self.logs = deployment, logs
        self.home = logs / "flwr"
        self.home.mkdir(parents=True, exist_ok=True)
        self.port = deployment.server.port
        self.env = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(self.home),
            "PYTHONPATH": str(Path(pmfl.__file__).parents[1]),
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Loopback:
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n',
            "utf-8",
        )
        self.superlink = self.start(
            "superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port)
        )
        until(self._listens, 60, "the SuperLink did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self.started):
            stop(process)

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.logs / f"{name}.log").open("ab") as stream:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=self.env,
                stdout=stream,
                stderr=stream,
                cwd=self.logs,
                start_new_session=True,  # so that it can be ended with all that it has started
            )
        self.started.append(process)
        return process

    def node(self, k: int) -> subprocess.Popen[bytes]:
        config = f'pmfl-dir="{self.deployment.root}" client={k}'
        address = f"127.0.0.1:{self.port}"
        return self.start(
            f"node-{k}",
            "flower-supernode",
            "--insecure",
            "--superlink",
            address,
            "--port",
            str(free_port()),
            "--node-config",
            config,
        )

    def run(self) -> None:
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(APP), "here", "--run-config", f'pmfl-dir="{self.deployment.root}"'],
            env=self.env,
            cwd=self.logs,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _listens(self) -> bool:
        assert self.superlink.poll() is None, (self.logs / "superlink.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


def stop(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    process.wait(30)
