"""What the supervisor asks of Flower's server: let these nodes in, end what is left over, start the run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.interceptors.http.utils import add_headers
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from pmfl.deploy.gate import SECRET_HEADER, as_flower_writes
from pmfl.deploy.settings import Deployment
from pmfl.errors import EngineError

FINISHED = "finished"
FOLDER = "pmfl-dir"  # the key by which apps are told where their deployment lies


@dataclass(frozen=True)
class _Secret:
    """Shows the gate that it is the supervisor who asks."""

    secret: str

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the header."""
        add_headers(context.request, {SECRET_HEADER: self.secret})
        return call_next(context)


class Control:
    """A connection to the control interface of this machine's server."""

    def __init__(self, made: Deployment) -> None:
        self.made = made
        insecure = made.server.insecure
        self.client = ControlHttpClient.from_server_address(
            server_address=made.here,
            insecure=insecure,
            root_certificates=None if insecure else made.ca.read_bytes(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="pmfl"),
                _Secret((made.folder / "control.secret").read_text("utf-8")),
            ],
        )

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def register(self) -> int:
        """Let every client's key in; how many were new. Those that are known stay as they are."""
        new = 0
        for client in self.made.clients:
            if not client.key:
                continue
            try:
                self.client.RegisterNode(RegisterNodeRequest(public_key=as_flower_writes(client.key), name=client.name))
                new += 1
            except httpx.HTTPStatusError as error:
                if "already" not in error.response.text.lower() and "in use" not in error.response.text.lower():
                    raise _explained(error, f"client {client.id}'s key was not taken") from None
        return new

    def stop_all(self) -> list[int]:
        """End every run that is not finished: those of apps that are gone."""
        found = self.client.ListRuns(ListRunsRequest()).run_dict
        left = [run_id for run_id, run in found.items() if run.status.status != FINISHED]
        for run_id in left:
            try:
                self.client.StopRun(StopRunRequest(run_id=run_id))
            except httpx.HTTPStatusError as error:  # it finished meanwhile
                if error.response.status_code >= 500:
                    raise _explained(error, f"run {run_id} was not ended") from None
        return left

    def start(self) -> int:
        """Submit our app; the number of its run."""
        content, _ = build_fab_from_files(app_files())
        fab = Fab("", content, {})
        config = {FOLDER: str(self.made.root.resolve())}
        try:
            response = self.client.StartRun(
                StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config)))
            )
        except httpx.HTTPStatusError as error:
            raise _explained(error, "the app was not taken") from None
        return int(response.run_id)


def app_files() -> dict[str, bytes]:
    """Our app as Flower packs it: a project file that names what is installed, and a licence."""
    folder = resources.files("pmfl.deploy") / "app"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def _explained(error: httpx.HTTPStatusError, what: str) -> EngineError:
    text = error.response.text[:300]
    return EngineError(
        f"Flower's server said {error.response.status_code}: {what}: {text}",
        hint="its log is server/logs/superlink.log",
        code="E161",
    )
