"""What a deployment folder says: `deploy.toml` for the server, `node.toml` for each node. Typed, checked, frozen.

DIR/deploy.toml     [study] what is trained · [server] where and how · [[clients]] who may take part
DIR/ca.pem          the certificate that nodes trust; all a node needs besides its own folder
DIR/server/         certificate and private keys (0600), Flower's database, results/, status.json, result/
DIR/nodes/ID/       private key (0600), node.toml, memory/, sent.log
"""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from pmfl.core.files import replacing
from pmfl.core.params import Count, Rate, Size, Weight
from pmfl.errors import SpecError
from pmfl.study.names import problems
from pmfl.study.spec import RunSpec, run_spec
from pmfl.study.store import storing

Port = Annotated[int, Ge(1), Le(65535)]
LIVE = "live"  # the pattern of participation that is observed, not drawn


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServerSettings(_Part):
    """The section [server] of deploy.toml."""

    address: str = "127.0.0.1"  # the name or number by which nodes reach the server
    port: Port = 8000
    bind: str = "127.0.0.1"  # where the server listens: 0.0.0.0 for every interface of the machine
    insecure: bool = False  # no certificate, no keys: for trying on one machine only
    deadline: Rate = 60.0  # seconds a round waits for the replies of those that were asked
    min_replies: Size = 1  # a round needs so many: with fewer at the deadline it goes on until it has them
    norm_bound: Weight = 0.0  # an update longer than this is refused; 0: any finite one is taken
    body_limit: Count = 0  # megabytes a request may have; 0: four times the model, and at least 16

    @model_validator(mode="after")
    def _stays_inside(self) -> ServerSettings:
        if self.insecure and not is_loopback(self.bind):
            raise ValueError("without certificates the server may listen on this machine only: bind = 127.0.0.1")
        return self


class ClientEntry(_Part):
    """One of [[clients]]: who may take part, and by which key it is known."""

    id: Count
    name: str
    key: str = ""  # its public key as OpenSSH writes it; empty: bound to the first node that says so (insecure)


class NodeData(_Part):
    """The section [data] of node.toml: where a node's own samples are."""

    source: str = ""  # a name of `pmfl data`; empty: the path, or this client's share of the study's data set
    path: str = ""  # a file or folder
    options: dict[str, str | int] = {}  # how to read it: label, user, size, …


class NodeSettings(_Part):
    """A node.toml."""

    client: Count
    server: str  # host:port
    insecure: bool = False
    data: NodeData = NodeData()
    log_sent: bool = True  # a line in sent.log for everything that leaves the node
    allow: tuple[
        str, ...
    ] = ()  # what besides pmfl's own the server's study may name: "package.module:function", a path


@dataclass(frozen=True)
class NodeFolder:
    """DIR/nodes/ID: all that one node keeps. ``settings`` as its node.toml says."""

    root: Path  # DIR
    settings: NodeSettings

    @classmethod
    def open(cls, root: Path, client: int) -> NodeFolder:
        """The folder of a client's node, which `pmfl deploy init` has made."""
        file = node_folder(root, client) / "node.toml"
        hint = f"`pmfl deploy init` makes it on the server's machine: copy ca.pem and nodes/{client} from there"
        return cls(root, _parsed(NodeSettings, _read(file, hint), file))

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return node_folder(self.root, self.settings.client)

    @property
    def key(self) -> Path:
        """The node's private key."""
        return self.folder / "key.pem"

    @property
    def memory(self) -> Path:
        """What the client remembers between participations."""
        return self.folder / "memory"

    @property
    def sent_log(self) -> Path:
        """What has left the node, one JSON object a line."""
        return self.folder / "sent.log"

    @property
    def ca(self) -> Path:
        """The certificate by which the server is told from others."""
        return self.root / "ca.pem"

    def write(self) -> None:
        """Put node.toml in place."""
        _write(self.folder / "node.toml", self.settings.model_dump(mode="json"))


@dataclass(frozen=True)
class Deployment:
    """DIR in the eyes of the server. ``study`` holds what of a run's specification is not the default."""

    root: Path
    study: Mapping[str, Any]
    server: ServerSettings
    clients: tuple[ClientEntry, ...]

    @classmethod
    def open(cls, root: Path) -> Deployment:
        """What DIR/deploy.toml says."""
        file = root / "deploy.toml"
        given = _read(file, "`pmfl deploy init DIR` makes a deployment folder")
        found = _parsed(_DeployFile, given, file)
        return cls(root, found.study, found.server, found.clients)

    def write(self) -> None:
        """Put deploy.toml in place."""
        file = _DeployFile(study=dict(self.study), server=self.server, clients=self.clients)
        _write(self.root / "deploy.toml", file.model_dump(mode="json"))

    @property
    def spec(self) -> RunSpec:
        """The run that the study stands for: its clients are those registered, there when they are there."""
        data = {**self.study.get("data", {}), "clients": len(self.clients)}
        asked = {**self.study, "data": data, "participation": {"pattern": LIVE}}
        return run_spec(asked, f"{self.root / 'deploy.toml'}: [study]")

    @property
    def ca(self) -> Path:
        """The certificate of this deployment's own authority."""
        return self.root / "ca.pem"

    @property
    def folder(self) -> Path:
        """What belongs to the server alone."""
        return self.root / "server"

    @property
    def certificate(self) -> Path:
        """The server's certificate."""
        return self.folder / "certificate.pem"

    @property
    def key(self) -> Path:
        """The server's private key."""
        return self.folder / "key.pem"

    @property
    def database(self) -> Path:
        """What Flower keeps between starts."""
        return self.folder / "superlink.sqlite"

    @property
    def results(self) -> Path:
        """An ordinary results folder: store and checkpoints of the run."""
        return self.folder / "results"

    @property
    def status(self) -> Path:
        """Written by the app every round."""
        return self.folder / "status.json"

    @property
    def submitted(self) -> Path:
        """There when the app that the supervisor has started may take its run."""
        return self.folder / "submitted"

    @property
    def ended(self) -> Path:
        """What the app leaves there when a new start would only repeat its error."""
        return ended_file(self.root)

    @property
    def result(self) -> Path:
        """Where the trained model is put."""
        return self.folder / "result"

    @property
    def superlink(self) -> str:
        """Where nodes find the server, as host:port."""
        return host_port(self.server.address, self.server.port)

    @property
    def here(self) -> str:
        """Where the server's own machine finds it, as host:port."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
        return host_port(everywhere.get(self.server.bind, self.server.bind), self.server.port)


class _DeployFile(_Part):
    study: dict[str, Any] = {}
    server: ServerSettings = ServerSettings()
    clients: tuple[ClientEntry, ...] = ()

    @field_validator("clients")
    @classmethod
    def _in_order(cls, clients: tuple[ClientEntry, ...]) -> tuple[ClientEntry, ...]:
        if [client.id for client in clients] != list(range(len(clients))):
            raise ValueError(f"ids should count from 0: 0 … {len(clients) - 1}")
        keys = [client.key for client in clients if client.key]
        if len(set(keys)) != len(keys):
            raise ValueError("two clients have the same key")
        return clients


def ended_file(root: Path) -> Path:
    """Known even when nothing else of a deployment can be read."""
    return root / "server" / "ended.json"


def node_folder(root: Path, client: int) -> Path:
    """Where a client's node keeps its own."""
    return root / "nodes" / str(client)


def host_port(host: str, port: int) -> str:
    """``host:port``; numbers of the newer kind have brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own and nobody else's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


PartT = TypeVar("PartT", bound=_Part)


def _parsed(kind: type[PartT], given: Mapping[str, Any], file: Path) -> PartT:
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        takes = ", ".join(kind.model_fields)
        raise SpecError(f"{file}: {problems(error)}", hint=f"it takes {takes}", code="S160") from None


def _read(file: Path, hint: str) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise SpecError(f"there is no {file}", hint=hint, code="S161") from None
    except OSError as error:
        raise SpecError(
            f"{file} cannot be read: {error.strerror}", hint="look at its permissions", code="S161"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"{file}: {error}", hint="https://toml.io explains the format", code="S162") from None


def _write(file: Path, content: Mapping[str, Any]) -> None:
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as beside:
            beside.write_text(tomli_w.dumps(content), "utf-8")
