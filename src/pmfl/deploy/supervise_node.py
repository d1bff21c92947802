"""A node's supervisor: Flower's node and our app, brought back whenever they end, until it is asked to stop."""

from __future__ import annotations

from pathlib import Path

from pmfl.deploy.journal import Journal
from pmfl.deploy.keys import write_secret
from pmfl.deploy.processes import Backoff, Child, Lock, Stopped, end_leftovers, free_port
from pmfl.deploy.settings import NodeData, NodeFolder, is_loopback
from pmfl.errors import SpecError

LOOK = 0.2  # seconds between two looks at the children
PAIR = ("supernode", "app")


class NodeSupervisor:
    """Keeps one client's node going. It reconnects by itself, whatever became of it or of the server."""

    def __init__(self, root: Path, client: int, stopped: Stopped) -> None:
        self.root, self.stopped = root.resolve(), stopped
        self.node = NodeFolder.open(self.root, client)
        self.lock = Lock(self.node.folder / "supervisor.lock", f"node {client} of {root}")
        self.journal = Journal(self.node.folder)
        self.children: dict[str, Child] = {}
        self.marker = f"{self.root}#{client}"

    def run(self) -> None:
        """Until asked to stop."""
        refuse_open(self.node)
        self.lock.take()
        waits = Backoff(most=5.0, calm=20.0)
        try:
            ended = end_leftovers(self.marker)
            self.journal.tell("supervisor began", leftovers=ended)
            while not self.stopped:
                lived = self._pair()
                if not self.stopped:
                    self.stopped.wait(waits.next(lived))
            self.journal.state("stopped")
        finally:
            self._end()
            self.lock.release()

    def _pair(self) -> float:
        """Flower's node and the app, until one of them ends; seconds they lived."""
        write_secret(self.node.folder / "runtime.secret")
        port = str(free_port())
        self.children = {name: self._child(name, port) for name in PAIR}
        self.journal.state("running")
        while all(child.running for child in self.children.values()) and not self.stopped:
            self.stopped.wait(LOOK)
        for name, child in self.children.items():
            if not child.running and not self.stopped:
                self.journal.restarted(name)
        return self._end()

    def _child(self, name: str, port: str) -> Child:
        module = {"supernode": "launch_supernode", "app": "launch_client_app"}[name]
        arguments = ["-m", f"pmfl.deploy.{module}", str(self.root), str(self.node.settings.client), port, self.marker]
        environment = {"FLWR_HOME": str(self.node.folder / "flower"), "OMP_NUM_THREADS": "1"}
        child = Child(name, arguments, self.node.folder / "logs" / f"{name}.log", environment)
        self.journal.child(name, child.pid)
        self.journal.tell(f"{name} began", pid=child.pid)
        return child

    def _end(self) -> float:
        lived = 0.0
        for name, child in self.children.items():
            lived = max(lived, child.lived)
            child.stop()
            self.journal.child(name, None)
            self.journal.tell(f"{name} ended", code=child.code)
        self.children = {}
        return lived


def point(root: Path, client: int, data: str | None) -> NodeFolder:
    """The node's folder, with its own samples where the operator says: a file, a folder, or a name of `pmfl data`."""
    node = NodeFolder.open(root, client)
    if data is None:
        return node
    own = NodeData(path=str(Path(data).resolve())) if Path(data).exists() else NodeData(source=data)
    if node.settings.data.model_copy(update={"options": {}}) != own:
        kept = own.model_copy(update={"options": node.settings.data.options})
        node = NodeFolder(root, node.settings.model_copy(update={"data": kept}))
        node.write()
    return node


def refuse_open(node: NodeFolder) -> None:
    """Without certificates, never beyond this machine."""
    host = node.settings.server.rsplit(":", 1)[0].strip("[]")
    if node.settings.insecure and not is_loopback(host):
        raise SpecError(
            f"insecure, and the server is {node.settings.server}",
            hint="without certificates a node speaks with a server on its own machine only",
            code="S164",
        )
