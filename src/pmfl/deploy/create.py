"""`pmfl deploy init`: a deployment folder from nothing, or what is missing in one that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pmfl.deploy.keys import authority, node_key, server_certificate
from pmfl.deploy.settings import (
    ClientEntry,
    Deployment,
    NodeFolder,
    NodeSettings,
    ServerSettings,
    node_folder,
)
from pmfl.errors import SpecError
from pmfl.study.grid import overridden

STUDY = {
    "method": {"name": "pmfl"},
    "data": {"dataset": "digits"},
    "training": {"rounds": 30, "iterations": 5, "batch_size": 16, "client_lr": 0.1},
    "evaluation": {"every": 5},
}
HERE = ("localhost", "127.0.0.1", "::1")


def create(root: Path, nodes: int | None, server: Mapping[str, Any], changes: Sequence[str]) -> Deployment:
    """Make DIR, or bring it up to what is asked: more nodes, another address, other settings. Keys that are there
    stay; nothing is ever taken away."""
    old = Deployment.open(root) if (root / "deploy.toml").exists() else None
    known = old.clients if old else ()
    wanted = len(known) if nodes is None else nodes
    if old is None and nodes is None:
        wanted = 3
    if wanted < max(1, len(known)):
        raise SpecError(
            f"--nodes {wanted}: {root} has {len(known)} already",
            hint="clients keep their numbers, so none is taken away; a node that does not come takes no part",
            code="S163",
        )
    settings = ServerSettings.model_validate({**(old.server.model_dump() if old else {}), **server})
    study = overridden(old.study if old else STUDY, changes)
    made = Deployment(root, study, settings, ())
    hosts = tuple(dict.fromkeys((settings.address, *HERE)))
    if not settings.insecure:
        authority(made.ca, made.folder / "ca-key.pem")
        server_certificate(made.certificate, made.key, made.ca, made.folder / "ca-key.pem", hosts)
    clients = [*known]
    for client in range(wanted):
        key = "" if settings.insecure else _node(made, client)
        name = known[client].name if client < len(known) else f"node-{client}"
        clients[client:] = [ClientEntry(id=client, name=name, key=key), *clients[client + 1 :]]
        _node_settings(made, client)
    made = Deployment(root, study, settings, tuple(clients))
    made.spec  # noqa: B018  refuses a study that cannot be played before anything is started
    made.write()
    return made


def _node(made: Deployment, client: int) -> str:
    return node_key(node_folder(made.root, client) / "key.pem")


def _node_settings(made: Deployment, client: int) -> None:
    """node.toml says where the server is; what the node's operator has put there stays."""
    server, insecure = made.superlink, made.server.insecure
    if (node_folder(made.root, client) / "node.toml").exists():
        old = NodeFolder.open(made.root, client).settings
        settings = old.model_copy(update={"server": server, "insecure": insecure})
    else:
        settings = NodeSettings(client=client, server=server, insecure=insecure)
    NodeFolder(made.root, settings).write()
