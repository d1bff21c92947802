"""The README's figure, from the results of the smoke study: python docs/figures/make.py [RESULTS]."""

import sys
from pathlib import Path

from pmfl.report.figures import accuracy_by_rate
from pmfl.report.gather import fairness
from pmfl.report.series import runs_of, settings
from pmfl.study.grid import load
from pmfl.study.store import Store


def main(results: Path) -> None:
    """Write smoke.svg beside this file."""
    store, study = Store(results), load("smoke")
    found = settings(study, runs_of(store, study, study.runs))
    chart = accuracy_by_rate(fairness(store, found))
    chart.properties(background="white", padding=12).save(Path(__file__).with_name("smoke.svg"))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
