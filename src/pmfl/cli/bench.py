"""`pmfl bench`: how fast rounds are on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds that are timed.")]
Repeats = Annotated[int, typer.Option(min=1, help="How often each program is started.")]
Peers = Annotated[
    Path | None,
    typer.Option(metavar="FILE.toml", help='Other programs: a table [NAME] each, with command = "…" and env = { … }.'),
]
Profile = Annotated[str, typer.Option(metavar="PROFILE", help="exact or fast.")]


@app.command("round")
def one(
    method: Annotated[str, typer.Option(help="A method, as `pmfl methods` lists them.")] = "fedavg",
    model: Annotated[str, typer.Option(help="A network for images of 32 x 32 pixels.")] = "cnn-cifar10",
    clients: Annotated[int, typer.Option(min=1)] = 250,
    participants: Annotated[int, typer.Option(min=1, help="In every round.")] = 25,
    iterations: Annotated[int, typer.Option(min=1, help="Of each participant in a round.")] = 5,
    batch: Annotated[int, typer.Option(min=1, help="Images in an iteration.")] = 16,
    rounds: Rounds = 10,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help="local, local:WORKERS, lanes:WIDTH or lanes:WIDTH@DEVICE.")
    ] = "local",
    profile: Profile = "exact",
    as_json: AsJson = False,
) -> None:
    """Time rounds of one method: seconds, where they go, memory, and how far the machine's ceiling is."""
    from pmfl.study.bench.rounds import engine_of, time_run
    from pmfl.study.bench.workload import workload

    section, workers = engine_of(engine, profile)
    spec = workload(
        method,
        model=model,
        clients=clients,
        participants=participants,
        iterations=iterations,
        batch=batch,
        engine=section,
    )
    found = time_run(spec, rounds=rounds, workers=workers)
    typer.echo(json.dumps(found, indent=1) if as_json else _lines(found))


@app.command()
def compare(rounds: Rounds = 8, repeats: Repeats = 3, peers: Peers = None, as_json: AsJson = False) -> None:
    """Time FedAvg here and in other programs, in turns: this library, two plain loops, and those of a file."""
    from pmfl.study.bench.contest import contest, ours, read_peers, standings
    from pmfl.study.bench.suite import standing

    everyone = [*ours(("exact", "fast")), *(read_peers(peers) if peers else [])]
    rows = standings(contest(everyone, rounds=rounds, repeats=repeats, tell=_tell), "pmfl exact")
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    typer.echo("| program | s/round | range | rounds of pmfl exact | start-up s | first round s | peak MB |")
    typer.echo("\n".join(["|---|---|---|---|---|---|---|", *map(standing, rows)]))


@app.command("all")
def everything(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where DATE.json and DATE.md go.")] = Path(
        "benchmarks"
    ),
    rounds: Rounds = 8,
    repeats: Repeats = 5,
    peers: Peers = None,
) -> None:
    """Measure everything that is said about speed, and write it down. About ten minutes on two idle cores."""
    from pmfl.study.bench.contest import read_peers
    from pmfl.study.bench.suite import measure_all, write

    found = measure_all(read_peers(peers) if peers else [], rounds=rounds, repeats=repeats, tell=_tell)
    for file in write(found, to):
        typer.echo(file)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _lines(found: dict) -> str:  # type: ignore[type-arg]
    seconds, limits = found["seconds"], found["ceiling GFLOP/s"]
    load = " ".join(map(str, found["machine"]["load"]))
    rows = [
        f"{found['method']}, {found['engine']['profile']}, {found['workers']} workers, load {load}",
        f"  a round     {seconds['median']:.3f} s (fastest {seconds['min']:.3f}), "
        f"{found['rounds per second']:.2f} rounds/s",
        f"  start-up    {found['start-up']:.1f} s to the first round, which took {found['first round']:.2f} s",
        f"  evaluation  {found['evaluation of 10,000 images']:.2f} s for 10,000 images",
        f"  memory      {found['peak MB']:.0f} MB at most",
        f"  rate        {found['GFLOP/s']:.0f} GFLOP/s, {100 * found['of the convolution ceiling']:.0f} % of what "
        f"convolutions reach here ({limits['convolution']:.0f}); matrix products reach {limits['matrix product']:.0f}",
    ]
    rows += [f"  {name:<18} {100 * share:5.1f} %" for name, share in found["shares"].items()]
    return "\n".join(rows)
