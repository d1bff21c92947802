"""`make deploy-campaign`: faults injected into real deployments, again and again; what came of each is kept.

python -m tests.deploy.campaign OUT --injections 20 [--seconds 3000] [--nodes 3]
Every injection is a line of OUT/injections.jsonl, every run one of OUT/runs.jsonl: started again, it goes on.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from pmfl.core.keys import Key
from pmfl.deploy.stopping import stop
from tests.deploy.faults import KINDS, inject
from tests.deploy.field import Field

ROUNDS = 60  # of each run
GAP = 2  # rounds between two faults


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def add(file: Path, line: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def wanted(out: Path, injections: int) -> list[str]:
    """The kinds that still lack injections, the rarest first."""
    done = Counter(line["kind"] for line in lines(out / "injections.jsonl") if "skipped" not in line)
    return sorted((kind for kind in KINDS if done[kind] < injections), key=lambda kind: done[kind])


def episode(out: Path, number: int, injections: int, nodes: int, deadline: float, ends: float) -> None:
    """One run from its beginning to its end, broken many times."""
    root = out / "field" / str(number)
    stop(root)  # what a campaign that was killed has left
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    key, began = Key.root(number).fold("campaign"), time.monotonic()
    with Field(root, nodes, f"training.rounds={ROUNDS}", "evaluation.every=20", deadline=deadline) as field:
        if field.until(lambda: field.round >= 1, 240.0) is None:
            raise SystemExit(f"the run of {root} did not begin: see {root}/server/logs")
        while not field.done and time.monotonic() < ends and (left := wanted(out, injections)):
            if field.round >= ROUNDS - 6:
                break
            found = inject(field, left[0], key.fold(field.round))
            add(out / "injections.jsonl", {"run": number, "load": os.getloadavg()[0], **found})
            field.until(lambda at=field.round: field.done or field.round >= at + GAP, 120.0)
        over = field.until(lambda: field.done, 900.0)
        line: dict[str, Any] = {
            "run": number,
            "ended_by_itself": over is not None,
            "code": field.started["server"].poll(),
        }
        line |= {"seconds": round(time.monotonic() - began, 1), "rounds": field.round, "of": ROUNDS}
        line["restarts"] = field.server_known.get("restarts", {})
        line["disagreements"] = field.disagreements()
        line["replies"] = sum(client["replies"] for client in field.status["clients"])
        line["result"] = sorted(file.name for file in field.made.result.glob("*"))
    add(out / "runs.jsonl", line)
    if not line["disagreements"]:
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--injections", type=int, default=20, help="of each kind")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no fault is injected after so long")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=15.0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + given.seconds
    while wanted(given.out, given.injections) and time.monotonic() < ends:
        number = len(lines(given.out / "runs.jsonl"))
        episode(given.out, number, given.injections, given.nodes, given.deadline, ends)


if __name__ == "__main__":
    main()
