"""Shoot at a study 20 times by each signal, and write what came of it: `make fault-campaign`.

Exit code 1 if a model differs from that of an undisturbed run, a round is lost, or a file is left behind.
"""

from __future__ import annotations

import importlib.metadata
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pmfl.core.files import replacing
from tests.faults.shots import FULL, Calm, Outcome, calm, shoot

SHOTS = 20
SIGNALS = {signal.SIGKILL: "SIGKILL", signal.SIGINT: "Ctrl-C (SIGINT)", signal.SIGTERM: "SIGTERM"}
DOING = ("starting or ending", "playing")
PAGE = Path(__file__).parents[2] / "docs" / "results" / "faults.md"


def page(undisturbed: Calm, outcomes: Sequence[Outcome]) -> str:
    """What the campaign found, as Markdown."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pmfl", "torch", "numpy"))
    runs = undisturbed.document["runs"]
    lines = [
        "# Killed at random moments",
        "",
        "Written by `make fault-campaign`; do not edit. A study is started, shot at at a random moment, and started",
        f"again, {SHOTS} times for each signal; then it is left to finish, and compared with one left in peace.",
        "Moments are drawn in processor time, over start-up and over the rounds that are left, so that shots meet",
        "whatever the command does; a checkpoint is written after every round, so that they meet those too.",
        "",
        f"The study: {len(runs)} runs ({', '.join(sorted({run['method'] for run in runs}))}; seeds 0 and 1) of",
        f"{runs[0]['rounds']} rounds on digits, under a Markov pattern. With {versions}, Python",
        f"{platform.python_version()}, {platform.system()}.",
        "",
        f"| signal | shots that met it alive | {' | '.join(DOING)} | runs with equal sha256 | what was wrong |",
        f"|---|---:|{'---:|' * len(DOING)}---:|---|",
    ]
    for outcome in outcomes:
        met = " | ".join(str(outcome.met.get(what, 0)) for what in DOING)
        said = "; ".join(" ".join(what.split()) for what in outcome.wrong) if outcome.wrong else "nothing"
        lines.append(f"| {SIGNALS[outcome.how]} | {outcome.shots} | {met} | {outcome.equal} of {len(runs)} | {said} |")
    lines += [
        "",
        "Looked for: another hash of a run's final model, rounds that are lost, a traceback, an exit code other than",
        "130 after a signal that can be heard (with the line that says how to go on), and any file or folder besides",
        "those that a finished study has.",
    ]
    return "\n".join(lines) + "\n"


def main(shots: int = SHOTS, to: Path = PAGE) -> int:
    """Run the campaign and write its page."""
    with tempfile.TemporaryDirectory(prefix="pmfl-faults-") as folder:
        undisturbed = calm(Path(folder), FULL)
        outcomes = []
        for how in SIGNALS:
            outcomes.append(shoot(undisturbed, how, shots, f"shot-{how.name}"))
            sys.stderr.write(f"{how.name}: {outcomes[-1].shots} shots, wrong: {outcomes[-1].wrong or 'nothing'}\n")
    to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as beside:
        beside.write_text(page(undisturbed, outcomes), "utf-8")
    sys.stdout.write(f"{to}\n")
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
