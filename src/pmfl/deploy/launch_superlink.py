"""Flower's server as a process of ours: `python -m pmfl.deploy.launch_superlink DIR`. It stands behind the gate."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from flwr.superlink.cli.flower_superlink import flower_superlink

from pmfl.deploy.gate import Gate, as_flower_writes
from pmfl.deploy.processes import die_with_parent
from pmfl.deploy.settings import Deployment

KEEP_ALIVE = 30  # seconds an idle connection is kept: nodes ask more often than that


def flags(made: Deployment) -> list[str]:
    """What Flower's server is started with."""
    server = made.server
    safe = [
        *("--ssl-certfile", str(made.certificate), "--ssl-keyfile", str(made.key), "--ssl-ca-certfile", str(made.ca)),
        "--enable-supernode-auth",
    ]
    return [
        *("--host", server.bind, "--port", str(server.port)),
        *("--database", str(made.database)),
        *("--isolation", "process"),
        *("--superexec-auth-secret-file", str(made.folder / "runtime.secret")),
        "--disable-runtime-dependency-installation",
        *(["--insecure"] if server.insecure else safe),
    ]


def gated(run: Callable[..., None], made: Deployment) -> Callable[..., None]:
    """uvicorn's ``run``, with the gate around whatever it serves and without a log line per request."""
    keys = None if made.server.insecure else frozenset(as_flower_writes(client.key) for client in made.clients)
    secret = (made.folder / "control.secret").read_text("utf-8")
    limit = int(os.environ["PMFL_BODY_LIMIT"])

    def serve(*, app: Any, **options: Any) -> None:
        gate = Gate(app, limit=limit, secret=secret, keys=keys)
        quiet = {"access_log": False, "timeout_keep_alive": KEEP_ALIVE, "server_header": False, "proxy_headers": False}
        run(gate, **{**options, **quiet})

    return serve


def main(arguments: list[str]) -> None:
    """Serve until asked to end, or until the supervisor ends."""
    die_with_parent(int(os.environ["PMFL_PARENT"]))
    made = Deployment.open(Path(arguments[0]))
    uvicorn.run = gated(uvicorn.run, made)
    sys.argv = ["flower-superlink", *flags(made)]
    flower_superlink()


if __name__ == "__main__":
    main(sys.argv[1:])
