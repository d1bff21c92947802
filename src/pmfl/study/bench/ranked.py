"""Rounds played by several ranks, timed: a process each, as ``pmfl run --engine ranks`` has them."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pmfl.engines.ranks import Crew
from pmfl.study.bench.process import age
from pmfl.study.bench.rounds import play_rounds
from pmfl.study.crews import start_crew
from pmfl.study.run import Run
from pmfl.study.spec import RunSpec

LOOK = 0.05  # seconds between two looks at whether they are done


def in_ranks(spec: RunSpec, *, ranks: int, rounds: int) -> dict[str, Any]:
    """What other programs are compared by: start-up, and the seconds of each round from the first on."""
    born = time.time() - age()
    with tempfile.TemporaryDirectory(prefix="pmfl-bench-") as folder:
        out = Path(folder) / "seen.json"
        team = start_crew(ranks, _play, (spec, rounds, out))
        while team.alive:
            time.sleep(LOOK)
            team.look()
        team.check()
        seen = json.loads(out.read_text(encoding="utf-8"))
    return {"startup": seen["ready"] - born, "rounds": seen["rounds"]}


def _play(join: Callable[[str], Crew], spec: RunSpec, rounds: int, out: Path) -> None:
    crew = join("cpu")
    run = Run(spec, crew=crew)
    ready, seconds = time.time(), play_rounds(run, rounds)
    run.close()
    if crew.leads:
        out.write_text(json.dumps({"ready": ready, "rounds": seconds}), encoding="utf-8")
    crew.leave()
