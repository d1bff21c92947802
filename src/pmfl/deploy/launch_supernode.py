"""Flower's node as a process of ours: `python -m pmfl.deploy.launch_supernode DIR CLIENT PORT`.

It differs from `flower-supernode` in these ways: it looks for messages every quarter of a second; a lost connection is
tried again every 2 s, also when it broke off during a handshake; the server takes it for gone after 20 s instead of 60;
after a crash it takes the place of its former self at once: it says first, with its key, that the old session is over;
a message that broke off on its way is forgotten (courier.py); and when its loop ends its process ends too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.fleet_pb2 import DeactivateNodeRequest
from flwr.supercore import heartbeat
from flwr.supercore.retry import RetryInvoker, http_retry
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

from pmfl.deploy.brisk import Brisk
from pmfl.deploy.control import FOLDER
from pmfl.deploy.courier import Courier
from pmfl.deploy.keys import write_private
from pmfl.deploy.processes import die_with_parent
from pmfl.deploy.settings import NodeFolder

HEARTBEAT = 10  # seconds: the least that Flower allows; a node counts as gone after two of them
RECONNECT = 2  # seconds between two tries to reach the server, at most
TAKEOVER = 60.0  # seconds to keep asking to be let in while an old session still counts


def flags(node: NodeFolder, port: int) -> list[str]:
    """What Flower's node is started with."""
    settings = node.settings
    safe = ["--root-certificates", str(node.ca), "--auth-supernode-private-key", str(node.key)]
    return [
        *("--superlink", settings.server),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(node.folder / "runtime.secret")),
        *("--node-config", f'{FOLDER}="{node.root.resolve()}" client={settings.client}'),
        *(["--insecure"] if settings.insecure else safe),
    ]


def taking_over(activate: Callable[..., Any], session: Path, pause: float = 1.0) -> Callable[..., Any]:
    """``ActivateNode`` that ends the session of a former self when the server says the node is there already."""

    def enter(client: FleetHttpClient, request: Any) -> Any:
        ends = time.monotonic() + TAKEOVER
        while True:
            try:
                response = activate(client, request)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.PRECONDITION_FAILED or time.monotonic() > ends:
                    raise
                if not _leave(client, session):
                    time.sleep(pause)
                continue
            write_private(session, str(response.node_id).encode())
            return response

    return enter


def _leave(client: FleetHttpClient, session: Path) -> bool:
    """Say that the session we had is over; whether there was one to speak of."""
    try:
        client.DeactivateNode(DeactivateNodeRequest(node_id=int(session.read_text("utf-8"))))
    except (OSError, ValueError, httpx.HTTPError):
        return False
    finally:
        session.unlink(missing_ok=True)
    return True


def persistent(make: Callable[[], RetryInvoker]) -> Callable[[], RetryInvoker]:
    """Flower gives up on whatever has to do with TLS. Only a wrong certificate will not mend by itself."""

    def made() -> RetryInvoker:
        invoker = make()
        gives_up = invoker.should_giveup

        def hopeless(error: Exception) -> bool:
            if isinstance(error, httpx.TransportError):
                return "certificate" in str(error).lower()
            return gives_up is not None and gives_up(error)

        invoker.should_giveup = hopeless
        return invoker

    return made


def adjust(node: NodeFolder) -> None:
    """Set in Flower's modules what has no flag."""
    loop: Any = start_client_internal
    loop.time = Brisk()
    courier = Courier(loop._pull_and_store_message, loop._push_messages)
    loop._pull_and_store_message, loop._push_messages = courier.fetch, courier.hand_in
    connection: Any = fleet_http_connection
    connection.make_simple_http_retry_invoker = persistent(connection.make_simple_http_retry_invoker)
    beats: tuple[Any, ...] = (fleet_http_connection, heartbeat)
    for module in beats:
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    tries: Any = http_retry
    tries.MAX_RETRY_DELAY = RECONNECT
    fleet: Any = FleetHttpClient
    fleet.ActivateNode = taking_over(FleetHttpClient.ActivateNode, node.folder / "session")


def main(arguments: list[str]) -> None:
    """Serve until asked to end, or until the supervisor ends."""
    die_with_parent(int(os.environ["PMFL_PARENT"]))
    root, client, port = arguments[:3]
    node = NodeFolder.open(Path(root), int(client))
    adjust(node)
    sys.argv = ["flower-supernode", *flags(node, int(port))]
    try:
        flower_supernode()
    finally:
        end_with(1)  # its web server's thread would keep the process there, serving nobody


def end_with(code: int) -> None:
    """End the process, whatever its threads are at; what it has written is kept."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
