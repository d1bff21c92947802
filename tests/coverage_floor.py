"""Refuse a coverage report that is below what each package must have. Run after `pytest --cov`.

The kernel and the methods are covered line by line; of every other package at least 95 % of the lines.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1] / "src" / "pmfl"
WHOLE = ("core", "methods")  # every line
FLOOR = 95.0  # per cent of a package's lines


class Package(NamedTuple):
    """What the tests run of one package."""

    name: str
    lines: int
    missed: dict[str, list[int]]  # by file, those that have some

    @property
    def percent(self) -> float:
        """The share of lines that ran."""
        return 100 * (1 - sum(map(len, self.missed.values())) / self.lines) if self.lines else 100.0

    @property
    def floor(self) -> float:
        """The least that will do."""
        return 100.0 if self.name in WHOLE else FLOOR


def packages(report: dict[str, dict[str, dict[str, list[int]]]]) -> list[Package]:
    """The report of `coverage json` by package; a module at the top counts for `pmfl` itself."""
    found: dict[str, tuple[int, dict[str, list[int]]]] = {}
    for name, file in report["files"].items():
        place = Path(name).resolve().relative_to(ROOT)
        package = place.parts[0] if len(place.parts) > 1 else "pmfl"
        lines, missed = found.setdefault(package, (0, {}))
        if file["missing_lines"]:
            missed[str(place)] = file["missing_lines"]
        found[package] = (lines + len(file["executed_lines"]) + len(file["missing_lines"]), missed)
    return [Package(name, lines, missed) for name, (lines, missed) in sorted(found.items())]


def unseen(report: dict[str, dict[str, object]]) -> list[str]:
    """Files of ours that the report does not know: a report of a part of the library proves nothing."""
    known = {Path(name).resolve() for name in report["files"]}
    return [str(file.relative_to(ROOT)) for file in sorted(ROOT.rglob("*.py")) if file.resolve() not in known]


def main() -> int:
    """Print a line per package; 1 if one of them is below its floor."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", str(file)], check=True)
        report = json.loads(file.read_text("utf-8"))
    absent = unseen(report)
    low = [package for package in packages(report) if package.percent < package.floor]
    for package in packages(report):
        sys.stdout.write(
            f"{package.name:<10} {package.percent:6.2f} % of {package.lines:5} (at least {package.floor:g})\n"
        )
    for package in low:
        for name, lines in sorted(package.missed.items(), key=lambda item: -len(item[1])):
            sys.stdout.write(f"  {name}: {len(lines)} lines never ran: {', '.join(map(str, lines))}\n")
    for name in absent:
        sys.stdout.write(f"  {name}: not in the report\n")
    return 1 if low or absent else 0


if __name__ == "__main__":
    sys.exit(main())
