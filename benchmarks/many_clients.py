"""What a round costs when there are very many clients: `python benchmarks/many_clients.py [--out FILE.json]`.

Two questions. What does a round of participation and weights cost with a million clients, when nothing is trained:
the pattern's row, the method's selection and weights, the record in the store. And what does a round of training with
50 participants cost among 100,000 clients, beside the same among 250; both are played in turns, record and checkpoint
included. Medians over rounds; the first rounds are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pmfl
from pmfl.core.keys import Key
from pmfl.core.method import Measure
from pmfl.core.round import play, start
from pmfl.core.types import Downlink, Round, Seen, Vector
from pmfl.engines.local import exactly, keep_freed_memory
from pmfl.study.names import resolve
from pmfl.study.play import row_of
from pmfl.study.spec import run_spec
from pmfl.study.store import Record, Store
from pmfl.world.participation import PATTERNS

PARTICIPANTS = 50
FEW, MANY, MOST = 250, 100_000, 1_000_000
WARM = 5  # rounds before the first that counts


@dataclass(frozen=True)
class Unsaid:
    """Replies of clients that were not trained."""

    seen: Seen

    def measure(self, measure: Measure) -> Tensor:
        """Nothing to measure."""
        return torch.zeros(0, dtype=torch.float64)

    def weighted_sum(self, weights: Tensor) -> Vector:
        """No step; whose weights count is looked up, as an engine does."""
        assert bool(weights[self.seen.took_part].isfinite().all())
        return torch.zeros(1)


class Untrained:
    """An engine of clients that take part and do nothing."""

    def train(self, sent: Downlink, chosen: Tensor, now: Round) -> Unsaid:
        """Let the chosen clients say that they were there."""
        said = torch.zeros(int(chosen.sum()))
        return Unsaid(Seen(chosen, {"loss/first": said}))


def rounds_without_training(
    method: str, pattern: str, rounds: int, folder: Path, clients: int = MOST
) -> Iterator[float]:
    """Seconds of one round after the other."""
    rule, key = resolve("method", method)(), Key.root(0)
    rates = np.clip(key.fold("rates").numpy().exponential(0.1, clients), 0.02, 1.0)
    maker: Any = PATTERNS[pattern]
    who = maker(rates, key.fold("participation"))
    store = Store(folder / f"{method}-{pattern}", create=True)
    server, state = start(rule, torch.zeros(1), clients), who.start()
    for t in range(rounds):
        began = time.perf_counter()
        available, state = who.row(state, t)
        now = Round(t, rounds, clients, 0.1, key.fold("round", t))
        server, outcome = play(rule, Untrained(), server, available, now)
        seen = outcome.replies.seen
        store.write("run", [Record(t, {"local/clients": float(seen.took_part.sum())}, {}, seen.clients.numpy())])
        yield time.perf_counter() - began
    store.close()


def samples() -> pmfl.Dataset:
    """Images of digits' size, a mini-batch for each of the many clients."""
    rng = Key.root(1).numpy()
    x = rng.integers(0, 256, (16 * MANY, 8, 8, 1), dtype=np.uint8)
    y = rng.integers(0, 10, 16 * MANY)
    return pmfl.from_arrays(x, y, x[:1000], y[:1000])


def rounds_with_training(method: str, clients: int, rounds: int, data: pmfl.Dataset, folder: Path) -> Iterator[float]:
    """Seconds of one round after the other, with the record in the store."""
    asked = run_spec(
        {
            "method": method,
            "data": {"clients": clients, "partition": {"name": "iid"}},
            "participation": {"mean": PARTICIPANTS / clients, "floor": PARTICIPANTS / clients, "beta": 1e6},
            "training": {"rounds": rounds},
            "evaluation": {"every": 10},
        }
    )
    store = Store(folder / f"{method}-{clients}", create=True)
    store.add(row_of(asked, "benchmark"))
    run = pmfl.Run(asked, dataset=data)
    records = iter(run)
    for _ in range(rounds):
        began = time.perf_counter()
        record = next(records)
        store.write(asked.run_id, [record], t=run.t)
        yield time.perf_counter() - began
    run.close()
    store.close()


def median(seconds: list[float]) -> float:
    """Of what counts, in milliseconds."""
    return round(1000 * statistics.median(seconds[WARM:]), 2)


def measure(rounds: int) -> dict[str, Any]:
    """Everything, as one document."""
    found: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg(),
        "versions": {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "untrained": [],
        "trained": [],
    }
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder, exactly():
        for method in ("fedavg", "fedau", "pmfl", "mifa"):
            for pattern in ("bernoulli", "markov", "cyclic"):
                took = median(list(rounds_without_training(method, pattern, rounds, Path(folder))))
                found["untrained"].append({"method": method, "pattern": pattern, "clients": MOST, "ms": took})
        data = samples()
        for method in ("fedavg", "fedau", "pmfl"):
            few, many = (rounds_with_training(method, k, rounds, data, Path(folder)) for k in (FEW, MANY))
            pairs = list(zip(few, many, strict=True))
            a, b = median([pair[0] for pair in pairs]), median([pair[1] for pair in pairs])
            row = {"method": method, "participants": PARTICIPANTS, f"ms_{FEW}": a, f"ms_{MANY}": b}
            found["trained"].append({**row, "ratio": round(b / a, 3)})
    return found


if __name__ == "__main__":
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--rounds", type=int, default=40)
    words.add_argument("--out", type=Path)
    chosen = words.parse_args()
    text = json.dumps(measure(chosen.rounds), indent=1)
    if chosen.out:
        chosen.out.write_text(text + "\n", "utf-8")
    sys.stdout.write(text + "\n")
