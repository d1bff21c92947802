"""`make deploy-campaign`: faults injected into real deployments, again and again; what came of each is kept.

python -m tests.deploy.campaign OUT --injections 20 [--at-once 2] [--seconds 3000] [--nodes 3]
Every injection is a line of OUT/injections.jsonl, every run one of OUT/runs.jsonl: started again, it goes on. Asked to
end (SIGTERM), it lets the runs under way come to their end first. A fault of a node that cost more time than it may is
injected once more, and both lines stay; how long a server takes to start again is this machine's, and only told.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pmfl.core.keys import Key
from pmfl.deploy.processes import Stopped
from pmfl.deploy.stopping import stop
from pmfl.study.store import Store
from tests.deploy.faults import KINDS, SERVER, in_time, inject
from tests.deploy.field import Field
from tests.deploy.replay import forgotten, observed, replayed

ROUNDS = 100  # of each run
GAP = 2  # rounds between two faults
LONG = {"node killed, back after 30 s": 60, "node frozen beyond the deadline": 40}  # rounds that must be left for it
SHORT = 20  # for any other
TRIES = 1.5  # of the injections asked for, when some have cost too much time


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def add(file: Path, line: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(line) + "\n")
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def wanted(out: Path, injections: int, left: float = float("inf"), kinds: Collection[str] = KINDS) -> list[str]:
    """Of these kinds, those that still lack injections and fit into the rounds that are left, the rarest first."""
    done = [line for line in lines(out / "injections.jsonl") if "skipped" not in line]
    tried = Counter(line["kind"] for line in done)
    good = Counter(line["kind"] for line in done if line["kind"] in SERVER or in_time(line))
    lacking = [kind for kind in kinds if good[kind] < injections and tried[kind] < TRIES * injections]
    return sorted((kind for kind in lacking if LONG.get(kind, SHORT) <= left), key=lambda kind: tried[kind])


def episode(out: Path, given: argparse.Namespace, stopped: Stopped) -> None:
    """One run from its beginning to its end, broken many times."""
    name = f"{int(time.time())}-{os.getpid()}"
    root = out / "field" / name
    root.mkdir(parents=True)
    key, began = Key.root(int(time.time())).fold("campaign"), time.monotonic()
    study = (f"training.rounds={ROUNDS}", "evaluation.every=50")
    with Field(root, given.nodes, *study, deadline=given.deadline) as field:
        if field.until(lambda: field.round >= 1, 240.0) is None:
            raise SystemExit(f"the run of {root} did not begin: see {root}/server/logs")
        while (
            not field.done
            and not stopped
            and (left := wanted(out, given.injections, ROUNDS - field.round, given.kinds))
        ):
            moment = key.fold(field.round)
            rarest = left[: 1 + int(moment.fold("kind").numpy().integers(min(3, len(left))))][-1]
            found = inject(field, rarest, moment)
            add(out / "injections.jsonl", {"run": name, **found})
            field.until(lambda at=field.round: field.done or field.round >= at + GAP, 120.0)
        over = field.until(lambda: field.done, 900.0)
        line: dict[str, Any] = {
            "run": name,
            "ended_by_itself": over is not None,
            "code": field.started["server"].poll(),
        }
        line |= {"seconds": round(time.monotonic() - began, 1), "rounds": field.round, "of": ROUNDS}
        line["restarts"] = field.server_known.get("restarts", {})
        line["disagreements"] = field.disagreements()
        line["replies"] = sum(client["replies"] for client in field.status["clients"])
        line["late"], line["refused"], line["lost"], line["fresh"] = (
            sum(client[word] for client in field.status["clients"]) for word in ("late", "refused", "lost", "fresh")
        )
        line["result"] = sorted(file.name for file in field.made.result.glob("*"))
    line["same_bits"] = same_bits(field)
    add(out / "runs.jsonl", line)
    if not line["disagreements"] and line["same_bits"]:
        shutil.rmtree(root, ignore_errors=True)


def same_bits(field: Field) -> bool:
    """Whether the model is the one that the local engine trains with the participation that was observed."""
    made = field.made
    sha256 = Store(made.results).run(made.spec.run_id).model_sha256
    return sha256 == replayed(made, observed(made), forgotten(made)).sha256


def at_once(count: int, stopped: Stopped) -> None:
    """Several campaigns into the same folder, as processes of their own."""
    command = [sys.executable, "-m", "tests.deploy.campaign", *sys.argv[1:], "--at-once", "1"]
    found = [subprocess.Popen(command) for _ in range(count)]
    while any(process.poll() is None for process in found):
        if stopped.wait(0.5):
            for process in found:
                process.send_signal(signal.SIGTERM)
            break
    for process in found:
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--injections", type=int, default=20, help="of each kind")
    parser.add_argument("--at-once", type=int, default=1, help="deployments at the same time")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no fault is injected after so long")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=tuple(KINDS), choices=tuple(KINDS), metavar="KIND")
    parser.add_argument("--deadline", type=float, default=15.0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    stopped = Stopped().listen()
    if given.at_once > 1:
        at_once(given.at_once, stopped)
        return
    for left in (given.out / "field").glob("*"):  # by a campaign that was killed
        if not Path(f"/proc/{left.name.rpartition('-')[2]}").exists():
            stop(left)
            shutil.rmtree(left, ignore_errors=True)
    timer = threading.Timer(given.seconds, stopped.set)
    timer.daemon = True
    if given.seconds < float("inf"):
        timer.start()
    while wanted(given.out, given.injections, kinds=given.kinds) and not stopped:
        episode(given.out, given, stopped)


if __name__ == "__main__":
    main()
