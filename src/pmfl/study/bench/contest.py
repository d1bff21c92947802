"""Programs on the same workload, each in a process of its own, in turns: nobody has the better hour.

Another program takes part by a command that plays ``--rounds N`` rounds and writes to the file that $PB_OUT names
``{"startup": seconds, "rounds": [seconds, ...]}``.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pmfl.errors import SpecError
from pmfl.study.bench.process import Peak
from pmfl.study.bench.rounds import cores

LEFT_OUT = 2  # rounds at the start of each process, while caches and allocators settle
PATIENCE = 120.0  # seconds for one process


class Contender(NamedTuple):
    """A program to be timed."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = {}


def ours(profiles: Sequence[str]) -> list[Contender]:
    """This library in its profiles, by threads and by processes, and the two loops without a framework."""
    names = {f"pmfl {profile}": profile for profile in profiles}
    names |= {f"pmfl {profile}, {cores()} ranks": f"{profile}-ranks" for profile in profiles}
    names |= {"tuned loop": "tuned", "naive loop": "naive"}
    module = [sys.executable, "-m", "pmfl.study.bench.references"]
    return [Contender(name, [*module, which]) for name, which in names.items()]


def read_peers(file: Path) -> list[Contender]:
    """Other programs, from a file with a table [NAME] for each: ``command = "…"``, ``env = { … }``."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        return [
            Contender(name, shlex.split(table["command"]), dict(table.get("env", {}))) for name, table in tables.items()
        ]
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(
            f"{file}: {type(error).__name__}: {error}", hint='a table per program: [name], command = "python peer.py"'
        ) from None


def contest(
    contenders: Sequence[Contender], *, rounds: int, repeats: int, tell: Callable[[str], None]
) -> dict[str, list[dict[str, Any]]]:
    """What each process reported, by contender; one that failed reports why."""
    found: dict[str, list[dict[str, Any]]] = {one.name: [] for one in contenders}
    for repeat in range(repeats):
        for one in contenders:
            result = play(one, rounds)
            found[one.name].append(result)
            median = _median(result)
            tell(
                f"{repeat + 1}/{repeats} {one.name}: {result['error'] if median is None else f'{median:.3f} s a round'}"
            )
    return found


def play(one: Contender, rounds: int) -> dict[str, Any]:
    """One process."""
    with tempfile.TemporaryDirectory(prefix="pmfl-bench-") as folder:
        out, words = Path(folder) / "result.json", Path(folder) / "words.txt"
        env = {**os.environ, **one.env, "PB_OUT": str(out), "PB_T_SPAWN": str(time.time())}
        load, began = os.getloadavg()[0], time.perf_counter()
        with words.open("w") as log:
            try:
                process = subprocess.Popen(
                    [*one.command, "--rounds", str(rounds)], env=env, stdout=log, stderr=log, cwd=folder
                )
            except OSError as error:
                return {"error": f"cannot be started: {error}"}
            with Peak(process.pid) as peak:
                try:
                    code = process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    return {"error": f"took more than {PATIENCE:.0f} s"}
        if not out.exists():
            last = words.read_text(errors="replace").strip().splitlines()[-1:] or [""]
            return {"error": f"exit code {code}: {last[0][:200]}"}
        result = json.loads(out.read_text())
        return {
            "startup": result["startup"],
            "rounds": result["rounds"],
            "peak MB": peak.bytes / 2**20,
            "load": load,
            "wall": time.perf_counter() - began,
        }


def standings(found: Mapping[str, Sequence[Mapping[str, Any]]], first: str) -> list[dict[str, Any]]:
    """A row for each contender, the fastest first; ``ratio``: its round in rounds of ``first``."""
    rows = list[dict[str, Any]]()
    for name, results in found.items():
        medians = [median for median in map(_median, results) if median is not None]
        if not medians:
            rows.append({"program": name, "error": results[-1]["error"] if results else "not run"})
            continue
        done = [result for result in results if "rounds" in result]
        rows.append(
            {
                "program": name,
                "seconds": statistics.median(medians),
                "fastest": min(medians),
                "slowest": max(medians),
                "repeats": len(medians),
                "start-up": statistics.median(result["startup"] for result in done),
                "first round": statistics.median(result["rounds"][0] for result in done),
                "peak MB": max(result["peak MB"] for result in done),
            }
        )
    base = next((row["seconds"] for row in rows if row["program"] == first and "seconds" in row), None)
    for row in rows:
        if base and "seconds" in row:
            row["ratio"] = row["seconds"] / base
    return sorted(rows, key=lambda row: row.get("seconds", float("inf")))


def _median(result: Mapping[str, Any]) -> float | None:
    """Of the rounds after the first ones."""
    rounds = result.get("rounds", [])
    return statistics.median(rounds[LEFT_OUT:] or rounds) if rounds else None
