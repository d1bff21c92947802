"""A deployment of real processes on this machine, as its operators would start it, to break things in."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

import pmfl
from pmfl.deploy.create import create
from pmfl.deploy.journal import read, told
from pmfl.deploy.processes import free_port
from pmfl.deploy.settings import NodeFolder
from pmfl.deploy.stopping import stop
from pmfl.study import frames
from pmfl.study.store import Store
from tests.deploy.cable import Cable
from tests.deploy.replay import sent


class Field:
    """Server, nodes, and a cable for each node."""

    def __init__(self, root: Path, nodes: int, *study: str, deadline: float = 15.0, min_replies: int = 1) -> None:
        self.root, self.deadline = root, deadline
        if not (root / "deploy.toml").exists():
            port = free_port()
            create(root, nodes, {"port": port, "deadline": deadline, "min_replies": min_replies}, study)
        self.made = create(root, None, {"port": free_port(), "deadline": deadline}, study)
        self.cables = [Cable(self.made.server.port) for _ in self.made.clients]
        for k, cable in enumerate(self.cables):
            old = NodeFolder.open(root, k)
            NodeFolder(root, old.settings.model_copy(update={"server": f"127.0.0.1:{cable.port}"})).write()
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Field":
        for cable in self.cables:
            cable.heal()
        self.start("server", "server", str(self.root))
        for k in range(len(self.cables)):
            self.start_node(k)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for k in range(len(self.cables)):
            self.signal_node(k, signal.SIGCONT)
        with contextlib.suppress(Exception):
            stop(self.root)
        for process in self.started.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for cable in self.cables:
            cable.cut()

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(Path(pmfl.__file__).parents[1])}
        with (self.root / f"{name}.out").open("ab") as out:
            command = [sys.executable, "-c", "from pmfl.cli import main; main()", "deploy", *words]
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
        self.started[name] = process
        return process

    def start_node(self, k: int) -> None:
        self.start(f"node{k}", "node", str(self.root), "--client", str(k))

    def node_pids(self, k: int) -> list[int]:
        known = read(NodeFolder.open(self.root, k).folder)
        return [*known.get("children", {}).values()]

    def signal_node(self, k: int, number: int) -> None:
        for pid in self.node_pids(k):
            send(pid, number)

    @property
    def server_known(self) -> dict[str, Any]:
        return read(self.made.folder)

    @property
    def status(self) -> dict[str, Any]:
        return told(self.made.status)

    @property
    def round(self) -> int:
        return int(self.status.get("round", 0))

    @property
    def done(self) -> bool:
        return self.started["server"].poll() is not None

    def sent(self, k: int) -> list[dict[str, Any]]:
        """Replies that left node k."""
        return sent(NodeFolder.open(self.root, k).sent_log)

    def accepted(self, k: int) -> float:
        """When Flower's server last let node k in; 0 if it never has."""
        try:
            return (NodeFolder.open(self.root, k).folder / "session").stat().st_mtime
        except OSError:
            return 0.0

    def replies(self, k: int) -> int:
        """Replies of client k that were counted."""
        clients = self.status.get("clients", [])
        return int(clients[k]["replies"]) if clients else 0

    def until(self, what: Any, seconds: float) -> float | None:
        """Seconds until something was so; None if it was not in time."""
        return until(what, seconds)

    def disagreements(self) -> list[str]:
        """Where the server's record and those of the nodes differ: nothing may be counted twice, or lost."""
        store = Store(self.made.results)
        table = frames.participation(store, [self.made.spec.run_id])
        counted = sorted(zip(table["client"].to_pylist(), table["t"].to_pylist(), strict=True))
        wrong = [f"client {k} counted {n} times in round {t}" for (k, t), n in Counter(counted).items() if n > 1]
        for k in range(len(self.cables)):
            mine = [t for client, t in counted if client == k]
            sent = self.sent(k)
            wrong += [f"client {k}, round {t}: counted, never sent" for t in set(mine) - {s["t"] for s in sent}]
            for reply in sent:
                before = max((t for t in mine if t < reply["t"]), default=-1)
                if reply["counted"] != before:
                    wrong.append(f"client {k}, round {reply['t']}: told {reply['counted']}, recorded {before}")
            tally = self.status["clients"][k]
            if tally["replies"] != len(mine):
                wrong.append(f"client {k}: {tally['replies']} in the tally, {len(mine)} recorded")
        return wrong


def until(what: Any, seconds: float) -> float | None:
    """Seconds until something was so; None if it was not in time."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if what():
            return time.monotonic() - began
        time.sleep(0.1)
    return None


def send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
