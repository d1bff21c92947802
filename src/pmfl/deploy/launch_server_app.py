"""The server's app as a process of ours: `python -m pmfl.deploy.launch_server_app DIR`. It takes the run that was
submitted, plays it, and ends with it: how it ended is its exit code.

It is started before Flower's server answers, and loads meanwhile what it will need. Until it is told that its own run
was submitted it takes none: what waits there before is an earlier app's.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.logger import mirror_output_to_queue
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import http_grid
from flwr.superlink.runtime import run_serverapp

from pmfl.deploy.brisk import Brisk
from pmfl.deploy.processes import die_with_parent
from pmfl.deploy.settings import Deployment

POLL = 0.1  # seconds between two looks whether there is a task
APP = "pmfl.deploy.server_app"
PROTECTED = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def runtime(address: str, secret: Path, certificates: bytes | None) -> RuntimeHttpClient:
    """A client of the interface that hands out tasks."""
    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=certificates is None,
        root_certificates=certificates,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret.read_bytes(), protected_methods=PROTECTED),
        ],
    )


def take_task(client: RuntimeHttpClient, kind: TaskType) -> str | None:
    """The token of a task that waits, if one does; an interface that does not answer has none."""
    try:
        found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
    except httpx.HTTPError:
        return None
    return found.token or None


def main(arguments: list[str]) -> None:
    """Wait for the run, then play it."""
    die_with_parent(int(os.environ["PMFL_PARENT"]))
    made = Deployment.open(Path(arguments[0]))
    certificates = None if made.server.insecure else made.ca.read_bytes()
    importlib.import_module(APP)
    while not made.submitted.exists():
        time.sleep(POLL)
    client = runtime(made.here, made.folder / "runtime.secret", certificates)
    while (token := take_task(client, TaskType.SERVER_APP)) is None:
        time.sleep(POLL)
    client.close()
    loop: Any = http_grid
    loop.time = Brisk()
    log: Queue[str | None] = Queue()
    mirror_output_to_queue(log)
    run_serverapp(made.here, log, token, made.server.insecure, certificates, runtime_dependency_install=False)


if __name__ == "__main__":
    main(sys.argv[1:])
