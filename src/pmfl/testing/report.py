"""What the battery found: one line per check, and for every failure the reason and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pmfl.errors import MethodError

Outcome = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Finding:
    """What one check came to."""

    check: str  # the function's name
    promise: str  # what holds when it passes, in one line
    outcome: Outcome
    reason: str = ""  # why it failed, or was not run
    hint: str = ""  # what to do about it
    seconds: float = 0.0

    def __str__(self) -> str:
        shown = self.outcome.upper() if self.outcome == "failed" else self.outcome
        lines = [f"{shown:8} {self.seconds:5.2f} s  {self.check:29} {self.promise}"]
        reason = [f"         {line}".rstrip() for line in self.reason.splitlines()]
        return "\n".join([*lines, *reason, *([f"         hint: {self.hint}"] if self.hint else [])])


@dataclass(frozen=True)
class Report:
    """All findings about one method, in the order of the checks."""

    method: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The checks that failed; those that could not be run because of them are not among these."""
        return tuple(finding for finding in self.findings if finding.outcome == "failed")

    @property
    def passed(self) -> bool:
        """Whether every check was run and passed."""
        return all(finding.outcome == "passed" for finding in self.findings)

    @property
    def seconds(self) -> float:
        """How long all checks took together."""
        return sum(finding.seconds for finding in self.findings)

    def raise_if_failed(self) -> None:
        """Raise ``MethodError`` with every failure in it: one line in a user's own test suite."""
        if self.failed:
            raise MethodError(
                f"method {self.method!r} fails {len(self.failed)} of {len(self.findings)} checks\n\n"
                + "\n".join(map(str, self.failed)),
                hint="make the first one pass; checks that need it are run after that",
            )

    def __str__(self) -> str:
        counts = {kind: sum(finding.outcome == kind for finding in self.findings) for kind in ("passed", "failed")}
        rest = len(self.findings) - sum(counts.values())
        words = [f"{counts['passed']} passed", f"{counts['failed']} failed", *([f"{rest} not run"] if rest else [])]
        title = f"{self.method}: {', '.join(words)} in {self.seconds:.1f} s"
        return "\n".join([title, "", *map(str, self.findings)])
