"""Every number about speed, measured anew by one command, and written down with where and when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pmfl.study.bench.contest import Contender, contest, ours, standings
from pmfl.study.bench.process import machine
from pmfl.study.bench.rounds import cores, take_turns
from pmfl.study.bench.workload import workload

METHODS = ("fedavg", "fedau", "fedvarp", "mifa", "fedprox", "moon", "pmfl", "pmfl-mct")
ITERATIONS = (1, 3, 5, 7, 9)
FEW = 60  # clients where several memories are in one process; more of them do not change a round's time
Tell = Callable[[str], None]


def measure_all(peers: Sequence[Contender], *, rounds: int, repeats: int, tell: Tell) -> dict[str, Any]:
    """All measurements, one after the other: about ten minutes."""
    began, before = time.perf_counter(), machine()
    found: dict[str, Any] = {"machine": before, "rounds": rounds, "repeats": repeats}
    everyone = [*ours(("exact", "fast")), *peers]
    results = contest(everyone, rounds=rounds, repeats=repeats, tell=tell)
    found["programs"] = {"standings": standings(results, "pmfl exact"), "results": results}
    for method in ("fedavg", "pmfl"):
        tell(f"one process: {method}")
        found[f"one process: {method}"] = _alone(method)
    found |= in_turns(rounds, tell)
    found["load after"] = [round(load, 2) for load in os.getloadavg()]
    found["minutes"] = (time.perf_counter() - began) / 60
    return found


def in_turns(rounds: int, tell: Tell) -> dict[str, Any]:
    """Methods and profiles that take turns in one process."""
    workers = cores()
    tell("profiles in turns")
    profiles = {
        f"{method} {profile}": workload(method, clients=FEW, engine={"profile": profile})
        for method in ("fedavg", "pmfl")
        for profile in ("exact", "fast")
    }
    found: dict[str, Any] = {"profiles in turns": take_turns(profiles, rounds=rounds, workers=workers)}
    tell("methods in turns")
    methods = {method: workload(method, clients=FEW) for method in METHODS}
    found["methods in turns"] = take_turns(methods, rounds=rounds, workers=workers)
    tell("numbers of local iterations in turns")
    found["iterations in turns"] = {}
    for iterations in ITERATIONS:
        pair = {method: workload(method, clients=FEW, iterations=iterations) for method in ("fedavg", "pmfl")}
        found["iterations in turns"][str(iterations)] = take_turns(pair, rounds=max(rounds // 2, 2), workers=workers)
    return found


def write(found: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """DATE.json with everything, DATE.md with what there is to see."""
    folder.mkdir(parents=True, exist_ok=True)
    name = found["machine"]["date"].split()[0]
    files = folder / f"{name}.json", folder / f"{name}.md"
    files[0].write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    files[1].write_text(to_markdown(found), encoding="utf-8")
    return files


def to_markdown(found: Mapping[str, Any]) -> str:
    """The measurements as a page."""
    at = found["machine"]
    libraries = ", ".join(f"{name} {number}" for name, number in at["libraries"].items())
    lines = [
        f"# Speed, {at['date']}",
        "",
        f"{at['cores']} cores of {at['cpu']} ({at['vectors']}), {at['system']}, Python {at['python']}, {libraries}, "
        f"commit {at['commit'] or 'unknown'}; load {at['load'][0]} before and {found['load after'][0]} after, "
        f"{found['minutes']:.1f} minutes. Written by `pmfl bench all`.",
        "",
        "## Programs",
        "",
        "FedAvg on the workload: 250 clients, 25 participants a round, 5 iterations of 16 images, the CIFAR-10 "
        f"network. Each process plays {found['rounds']} rounds, the first two left out; medians over "
        f"{found['repeats']} interleaved repeats.",
        "",
        "| program | s/round | range | rounds of pmfl exact | start-up s | first round s | peak MB |",
        "|---|---|---|---|---|---|---|",
        *(standing(row) for row in found["programs"]["standings"]),
        "",
        "## One process",
        "",
        *_alone_lines(found),
        "",
        "## Profiles, methods and iterations in turns",
        "",
        "A round of each in turn, in one process; medians.",
        "",
        "| run | ms/round | training, ms a client | after training, ms | exact sum, ms |",
        "|---|---|---|---|---|",
    ]
    for table in ("profiles in turns", "methods in turns"):
        lines += [_turn(name, row) for name, row in found[table].items()]
    for iterations, pair in found["iterations in turns"].items():
        lines += [_turn(f"{name}, E = {iterations}", row) for name, row in pair.items()]
    return "\n".join([*lines, ""])


def standing(row: Mapping[str, Any]) -> str:
    """A program as a line of a table."""
    if "seconds" not in row:
        return f"| {row['program']} | {row['error']} | | | | | |"
    return (
        f"| {row['program']} | {row['seconds']:.3f} | {row['fastest']:.3f}–{row['slowest']:.3f} | "
        f"{row.get('ratio', float('nan')):.2f} | {row['start-up']:.1f} | {row['first round']:.2f} | "
        f"{row['peak MB']:.0f} |"
    )


def _turn(name: str, row: Mapping[str, Any]) -> str:
    return (
        f"| {name} | {1e3 * row['median']:.1f} | {1e3 * row['training of a client']:.2f} | "
        f"{1e3 * row['after training']:.1f} | {1e3 * row['weighted sum']:.1f} |"
    )


def _alone_lines(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for method in ("fedavg", "pmfl"):
        one = found[f"one process: {method}"]
        parts = ", ".join(f"{name} {100 * share:.1f} %" for name, share in one["shares"].items())
        lines.append(
            f"- {method}: {one['seconds']['median']:.3f} s a round ({one['GFLOP a round']:.1f} GFLOP, "
            f"{one['GFLOP/s']:.0f} GFLOP/s, {100 * one['of the convolution ceiling']:.0f} % of the convolution ceiling "
            f"of {one['ceiling GFLOP/s']['convolution']:.0f}; matrix products "
            f"{one['ceiling GFLOP/s']['matrix product']:.0f}); start-up {one['start-up']:.1f} s, evaluation of 10,000 "
            f"images {one['evaluation of 10,000 images']:.2f} s, peak {one['peak MB']:.0f} MB; {parts}."
        )
    return lines


def _alone(method: str) -> dict[str, Any]:
    """`pmfl bench round` in a process of its own, so that start-up and memory are its own."""
    words = [sys.executable, "-c", "from pmfl.cli import main; main()", "bench", "round", "--method", method, "--json"]
    played = subprocess.run(words, capture_output=True, text=True, check=True)
    one: dict[str, Any] = json.loads(played.stdout)
    return one
