"""A storm: 10 nodes, of which 30 % are killed and started again in every round, for 100 rounds.

    python -m tests.deploy.storm OUT --nodes 10 --rounds 100

A kill is that of Flower's node and of the app behind it; their supervisor starts them again. What is looked at: that
no round hangs, that the server's memory does not grow, that both sides agree, that weights and model are what the local
engine gives for the participation that was observed. OUT/storm.json says what came of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pmfl.core.keys import Key
from pmfl.study.store import Store
from tests.deploy.field import Field
from tests.deploy.gauge import PARTS, Gauge
from tests.deploy.replay import forgotten, observed, replayed

PATIENCE = 300.0  # seconds for one round, after which it counts as a hang


def storm(
    root: Path, nodes: int, rounds: int, share: float, deadline: float, min_replies: int, most: float
) -> dict[str, Any]:
    """Play one, and say what came of it; after so many seconds the rest of it is calm."""
    stormed = 0
    key, kills, seconds, hung = Key.root(rounds).fold("storm"), 0, list[float](), False
    study = (f"training.rounds={rounds}", f"evaluation.every={rounds}")
    loads = [os.getloadavg()[0]]
    with Field(root, nodes, *study, deadline=deadline, min_replies=min_replies) as field:
        gauge = Gauge(field.made)
        if field.until(lambda: field.round >= 1, 600.0) is None:
            raise SystemExit(f"the run of {root} did not begin")
        began = since = time.monotonic()
        while not field.done and time.monotonic() - began < most:
            last, stormed = field.round, stormed + 1
            gauge.look(round=last)
            loads.append(os.getloadavg()[0])
            for k in key.fold(last).numpy().choice(nodes, round(share * nodes), replace=False).tolist():
                field.signal_node(k, signal.SIGKILL)
                kills += 1
            if field.until(lambda at=last: field.done or field.round > at, PATIENCE) is None:
                hung = True
                break
            seconds.append(time.monotonic() - since)
            since = time.monotonic()
        took = time.monotonic() - began
        hung = hung or field.until(lambda: field.done, PATIENCE) is None
        made, status = field.made, field.status
        wrong = field.disagreements()
    took_part = observed(made)
    again = replayed(made, took_part, forgotten(made))
    weights = [client["weight"] for client in status["clients"]]
    return {
        "nodes": nodes,
        "rounds": status["round"],
        "stormed": stormed,
        "share_killed": share,
        "deadline": deadline,
        "min_replies": min_replies,
        "kills": kills,
        "hung": hung,
        "ended_by_itself": field.started["server"].poll() == 0,
        "seconds": round(took, 1),
        "round_median": round(statistics.median(seconds), 2),
        "round_most": round(max(seconds), 2),
        "took_part_mean": round(statistics.fmean(len(took_part.get(t, ())) for t in range(status["round"])), 2),
        "took_part_least": min(len(took_part.get(t, ())) for t in range(status["round"])),
        "disagreements": wrong,
        "weights_equal": weights == again.weights,
        "same_bits": Store(made.results).run(made.spec.run_id).model_sha256 == again.sha256,
        "restarts_of_the_server": field.server_known.get("restarts", {}),
        **{word: sum(client[word] for client in status["clients"]) for word in ("late", "refused", "lost", "fresh")},
        "memory": {part: gauge.summary(part) for part in (*PARTS, "database")},
        "load_median": round(statistics.median(loads), 1),
        "load_most": round(max(loads), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--deadline", type=float, default=8.0)
    parser.add_argument("--min-replies", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which nothing is killed any more")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root, few = Path(folder), given.min_replies
        found = storm(root, given.nodes, given.rounds, given.share, given.deadline, few, given.seconds)
    (given.out / "storm.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
