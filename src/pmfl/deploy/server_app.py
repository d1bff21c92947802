"""The part of a deployment that Flower starts on the server."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pmfl.core.files import replacing
from pmfl.deploy.endings import leaving
from pmfl.deploy.serve import serve
from pmfl.deploy.settings import Deployment, ended_file
from pmfl.engines.flower import FlowerLink
from pmfl.study.store import storing

FOLDER = "pmfl-dir"  # the key of Flower's run configuration that says where the deployment lies

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds that are left."""
    root = Path(str(context.run_config[FOLDER]))
    with leaving(ended_file(root)):
        deployment = Deployment.open(root)
        serve(deployment, link(deployment, grid))


def link(deployment: Deployment, grid: Grid) -> FlowerLink:
    """The grid with this deployment's clients behind it."""
    keys = {client.key: client.id for client in deployment.clients}
    return FlowerLink(grid, keys, bindings(deployment) if deployment.server.insecure else None)


def bindings(deployment: Deployment) -> Callable[[int, str], bool]:
    """Without keys: the first node that says it is a client is that client from then on, by its token."""
    file = deployment.folder / "bindings.json"
    known: dict[str, str] = json.loads(file.read_text("utf-8")) if file.is_file() else {}

    def bind(k: int, token: str) -> bool:
        if not 0 <= k < len(deployment.clients) or deployment.clients[k].key:
            return False
        if str(k) not in known:
            known[str(k)] = token
            with storing(file):
                file.parent.mkdir(parents=True, exist_ok=True)
                with replacing(file) as beside:
                    beside.write_text(json.dumps(known), "utf-8")
        return known[str(k)] == token

    return bind
