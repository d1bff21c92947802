"""`pmfl deploy`: the same run between real machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pmfl.errors import SpecError

if TYPE_CHECKING:
    from pmfl.deploy.settings import Deployment

app = typer.Typer(help="Train between real machines, on Flower's network and keys.", no_args_is_help=True)

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The deployment's folder.")]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, metavar="N", help="How many clients may take part.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A key of the study.")]
Address = Annotated[str | None, typer.Option("--address", help="The name or number by which nodes reach the server.")]
Bind = Annotated[str | None, typer.Option("--bind", help="Where it listens: 127.0.0.1, or 0.0.0.0 for everywhere.")]
PortOption = Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Default: 8000.")]
Deadline = Annotated[float | None, typer.Option("--deadline", min=0.1, help="Seconds a round waits for replies.")]
MinReplies = Annotated[int | None, typer.Option("--min-replies", min=1, help="Replies without which no round ends.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No certificates, no keys: on this machine only.")]


def _making(then: Callable[[Path, Deployment], None]) -> None:
    """A command that first makes DIR, or brings it up to what is asked: they all take the same options."""

    def command(
        folder: Dir,
        nodes: Nodes = None,
        address: Address = None,
        bind: Bind = None,
        port: PortOption = None,
        deadline: Deadline = None,
        min_replies: MinReplies = None,
        insecure: Insecure = False,
        set_: Set = None,
    ) -> None:
        _needs_flower()
        given = {"address": address, "bind": bind, "port": port, "deadline": deadline, "min_replies": min_replies}
        then(folder, _create(folder, nodes, {**given, "insecure": insecure or None}, set_))

    app.command(then.__name__, help=then.__doc__)(command)


@_making
def init(folder: Path, made: Deployment) -> None:
    """Make a deployment's folder: certificates, a key for every node, configuration. Again: add what is missing."""
    typer.echo(f"{folder}: {len(made.clients)} clients, server {made.superlink}")
    typer.echo(f"the study is in {folder / 'deploy.toml'}; on the server's machine: pmfl deploy server {folder}")
    if not made.server.insecure:
        typer.echo(f"a node's machine needs {folder / 'ca.pem'} and {folder / 'nodes'}/ID, nothing else")


@app.command()
def server(folder: Dir) -> None:
    """Run the server until the study is done. After any crash, also of itself, it continues where it stopped."""
    _needs_flower()
    from pmfl.deploy.guard import guard
    from pmfl.deploy.processes import Stopped
    from pmfl.deploy.settings import Deployment

    Deployment.open(folder)
    _end(guard({"server": ["server", str(folder)]}, "server", Stopped().listen()), folder)


@app.command()
def node(
    folder: Dir,
    client: Annotated[int, typer.Option("--client", min=0, help="Which client this is.")],
    data: Annotated[
        str | None, typer.Option("--data", metavar="PATH", help="Its samples: a file, a folder, a name of `pmfl data`.")
    ] = None,
) -> None:
    """Run a node until it is stopped. It connects again by itself, whatever became of it or of the server."""
    _needs_flower()
    from pmfl.deploy.guard import guard
    from pmfl.deploy.processes import Stopped
    from pmfl.deploy.supervise_node import point

    point(folder, client, data)
    _end(guard({"node": ["node", str(folder), str(client)]}, "node", Stopped().listen()), folder)


@_making
def up(folder: Path, made: Deployment) -> None:
    """Everything on this machine, for trying: the folder if there is none, the server, and all its nodes."""
    from pmfl.deploy.guard import guard
    from pmfl.deploy.processes import Lock, Stopped

    lock = Lock(folder / "up.lock", f"`pmfl deploy up {folder}`")
    lock.take()
    typer.echo(f"server and {len(made.clients)} nodes; elsewhere: pmfl deploy status {folder}", err=True)
    supervisors = {"server": ["server", str(folder)]}
    supervisors |= {f"node {client.id}": ["node", str(folder), str(client.id)] for client in made.clients}
    _end(guard(supervisors, "server", Stopped().listen()), folder)


@app.command()
def status(folder: Dir, as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False) -> None:
    """Show who is here, when each was last seen, who took part how often, and how far the run is."""
    from pmfl.deploy.overview import as_text, overview

    found = overview(folder)
    typer.echo(json.dumps(found, indent=1) if as_json else as_text(found))


@app.command()
def stop(folder: Dir) -> None:
    """End what runs of this deployment on this machine. The next start continues."""
    from pmfl.deploy.settings import Deployment
    from pmfl.deploy.stopping import stop as stop_all

    if not (folder / "nodes").is_dir():
        Deployment.open(folder)  # says what is wrong with it
    ended = stop_all(folder)
    typer.echo(f"stopped: {', '.join(ended)}" if ended else "nothing was running")


def _create(folder: Path, nodes: int | None, given: Mapping[str, object], changes: list[str] | None) -> Deployment:
    from pydantic import ValidationError

    from pmfl.deploy.create import create
    from pmfl.study.names import problems

    asked = {name: value for name, value in given.items() if value is not None}
    try:
        return create(folder, nodes, asked, changes or [])
    except ValidationError as error:
        raise SpecError(f"{folder}: {problems(error)}", hint="pmfl deploy init --help", code="S165") from None


def _end(code: int, folder: Path) -> None:
    """Say how it ended."""
    from pmfl.deploy.guard import STOPPED

    if code == STOPPED:
        typer.echo("stopped; the same command continues", err=True)
        return
    if code == 0:
        typer.echo(f"done: the model is in {folder / 'server' / 'result'}", err=True)
        return
    raise typer.Exit(code)


def _needs_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None or find_spec("cryptography") is None:
        raise SpecError("deployments need Flower, which is not here", hint="pip install 'pmfl[deploy]'", code="S166")
