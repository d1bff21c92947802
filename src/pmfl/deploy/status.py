"""What can be seen of a deployment from outside: one small JSON file, written again whenever something has changed."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from pmfl.core.files import replacing
from pmfl.engines.remote import RemoteEngine
from pmfl.study.spec import RunSpec

EVERY = 1.0  # seconds between writes, at least, while a round is going on
SMOOTH = 0.2  # how much the newest round counts in the seconds per round


class Status:
    """Writes status.json. Nothing depends on it, so a full disk does not stop a run."""

    def __init__(self, file: Path, spec: RunSpec, names: list[str]) -> None:
        self.file, self.spec, self.names = file, spec, names
        self.t, self.state, self.note = 0, "waiting", ""
        self.metrics: dict[str, float] = {}
        self.importance: Tensor | None = None
        self.seconds = 0.0  # a round, smoothed
        self._last_seen: dict[int, float] = {}
        self._began, self._written = time.monotonic(), float("-inf")

    def played(self, t: int, metrics: dict[str, float], importance: Tensor | None, engine: RemoteEngine) -> None:
        """A round is over and saved."""
        now = time.monotonic()
        took, self._began = now - self._began, now
        self.seconds = took if not self.seconds else (1 - SMOOTH) * self.seconds + SMOOTH * took
        self.t, self.importance = t, importance
        self.metrics |= metrics
        self.write(engine)

    def watch(self, engine: RemoteEngine) -> None:
        """Called while the engine waits."""
        self._last_seen.update(dict.fromkeys(engine.here, time.time()))
        if time.monotonic() - self._written > EVERY:
            self.write(engine)

    def write(self, engine: RemoteEngine, state: str = "") -> None:
        """Put the file in place."""
        self.state = state or ("running" if engine.here else "waiting")
        self._written = time.monotonic()
        with contextlib.suppress(OSError), replacing(self.file, durable=False) as beside:
            beside.write_text(json.dumps(self.content(engine), indent=1), "utf-8")

    def content(self, engine: RemoteEngine) -> dict[str, Any]:
        """The file as plain values."""
        tally, weights = engine.tally, self.importance
        total = self.spec.training.rounds
        return {
            "run": self.spec.run_id,
            "method": self.spec.method.name,
            "state": self.state,
            "note": self.note,
            "updated": round(time.time(), 3),
            "round": self.t,
            "rounds": total,
            "seconds_per_round": round(self.seconds, 3),
            "seconds_left": round(self.seconds * (total - self.t), 1),
            "waiting_for": engine.waiting_for,
            "metrics": self.metrics,
            "refused": engine.reasons,
            "clients": [
                {
                    "id": k,
                    "name": name,
                    "here": k in engine.here,
                    "last_seen": self._last_seen.get(k),
                    "last_round": int(tally.counted[k]),
                    "participation": int(tally.replies[k]) / max(self.t, 1),
                    **{word: int(getattr(tally, word)[k]) for word in ("replies", "late", "refused", "lost", "fresh")},
                    "weight": _number(weights, k),
                    "complaint": engine.complaints.get(k, ""),
                    "latest": engine.latest.get(k, {}),
                }
                for k, name in enumerate(self.names)
            ],
        }


def _number(values: Tensor | None, k: int) -> float | None:
    if values is None or not bool(values[k].isfinite()):
        return None
    return float(values[k])
