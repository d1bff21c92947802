"""Every method of the paper on real SVHN, under its three patterns and a recording; written as docs/results/svhn.md.

    python benchmarks/svhn.py --trace DIR/availability_flash_intervals.parquet

Thirty rounds show that everything plays together on real data and real availability, and not which method is best.
Interrupted, it goes on where it was: `pmfl run` does.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

PATTERNS = ("bernoulli", "markov", "cyclic", "trace")
METHODS = ("pmfl", "fedau", "fedppo", "mifa", "fedvarp", "fedhyper")
RUN = "pmfl run svhn --set training.rounds=30 --set seed=0 --set evaluation.every=30 --set evaluation.train_every=0"
RECORDED = "--set participation.pattern=trace --set participation.path="


def main() -> None:
    """Play what is not played yet, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True, metavar="FILE", help="the FLASH recording")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="where results are")
    parser.add_argument("--to", type=Path, default=Path("docs/results/svhn.md"), metavar="FILE.md")
    parser.add_argument("--so-far", action="store_true", help="play nothing: write down what is done")
    given = parser.parse_args()
    for more in () if given.so_far else ("", f"{RECORDED}{given.trace}"):
        words = f"{RUN} {more}".split()[1:]
        command = [sys.executable, "-c", "from pmfl.cli import main; main()", *words, "--out", str(given.out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    given.to.parent.mkdir(parents=True, exist_ok=True)
    given.to.write_text("\n".join(page(given.out)) + "\n", encoding="utf-8")
    sys.stdout.write(given.to.read_text(encoding="utf-8"))


def page(out: Path) -> list[str]:
    """The page: the commands, and a row for each run."""
    rows = {(row["pattern"], row["method"]): row for row in found(out)}
    lines = [
        "# Thirty rounds on SVHN, with every method and pattern",
        "",
        "```sh",
        RUN,
        f"{RUN} \\",
        f"    {RECORDED}DIR/availability_flash_intervals.parquet",
        "```",
        "",
        "250 clients, slices with alpha = 0.1, the CNN of 273,706 parameters, 5 iterations of 16 samples, seed 0; the",
        "recording is FLASH's, with rounds of 60 s from midnight. Written by `python benchmarks/svhn.py`. After thirty",
        "rounds nothing has been learned that could rank methods: the table shows that all of them play, end to end,",
        "on real images and real availability, and that no model or loss has gone astray.",
        "",
        "| pattern | method | rounds | clients a round | seen in all | train, % | test, % | test loss | model |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for pattern in PATTERNS:
        for method in METHODS:
            row = rows.get((pattern, method))
            if row is None:
                lines.append(f"| {pattern} | {method} | not finished | | | | | | |")
                continue
            lines.append(
                f"| {pattern} | {method} | {row['rounds']} | {row['each']:.1f} | {row['seen']} | "
                f"{100 * row['train']:.1f} | {100 * row['test']:.1f} | {row['loss']:.3f} | `{row['model']}` |"
            )
    models = {row["model"] for row in rows.values()}
    finite = all(math.isfinite(row["loss"]) for row in rows.values())
    planned = len(PATTERNS) * len(METHODS)
    fine = "yes" if finite else "NO"
    lines += ["", f"{len(rows)} of {planned} runs, {len(models)} different models; every loss finite: {fine}."]
    return lines


def found(out: Path) -> list[dict[str, Any]]:
    """What the finished runs of this study say."""
    from pyarrow import parquet

    rows = []
    for folder in sorted((out / "runs").iterdir()):
        spec = tomllib.loads((folder / "spec.toml").read_text(encoding="utf-8"))
        if spec["data"]["dataset"] != "svhn" or spec["training"]["rounds"] != 30:
            continue
        said = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        came = parquet.read_table(folder / "participation.parquet")
        rows.append(
            {
                "pattern": spec["participation"]["pattern"]["name"],
                "method": spec["method"]["name"],
                "rounds": said["t"],
                "each": came.num_rows / said["t"],
                "seen": len(came["client"].unique()),
                "train": said["metrics"]["train/accuracy"]["final"],
                "test": said["metrics"]["test/accuracy"]["final"],
                "loss": said["metrics"]["test/loss"]["final"],
                "model": said["model_sha256"][:8],
            }
        )
    return rows


if __name__ == "__main__":
    main()
