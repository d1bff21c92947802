"""Everything that can go wrong, as one tree. Each error has a stable code, an exit code and a hint.

PmflError
├── SpecError      S…  a study, a name, a parameter or a file that was asked for is wrong       exit 2
├── MethodError    M…  a method breaks its contract                                             exit 2
├── EngineError    E…  the chosen engine cannot run this                                        exit 2
│   └── RankLost   E130  a process or machine of several is gone                                exit 75: start again
├── StoreError     R…  results or checkpoints cannot be read or written                         exit 2
├── DataMissing    D…  data are not on this machine, or are not what they should be             exit 3
└── Diverged       N…  numbers left the finite range during a run                               exit 4
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class PmflError(Exception):
    """An error a user can act on: what happened and where, and what to do next."""

    exit_code = 2
    default_code = "P000"

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Errors cross process borders when runs are played by workers."""
        return _rebuild, (type(self), self.__dict__)


class SpecError(PmflError):
    """The request is wrong: a study, a name, a parameter or a file."""

    default_code = "S100"


class MethodError(PmflError):
    """A method breaks the contract that every engine relies on."""

    default_code = "M100"


class EngineError(PmflError):
    """The chosen engine cannot do what the method or the study asks."""

    default_code = "E100"


class RankLost(EngineError):
    """One of the processes that play together is gone; what is saved is safe."""

    exit_code = 75  # for a while: whoever started this may start it again
    default_code = "E130"


class StoreError(PmflError):
    """Results or checkpoints cannot be read or written."""

    default_code = "R100"


class DataMissing(PmflError):
    """The data are not on this machine, or are not what they should be."""

    exit_code = 3
    default_code = "D100"


class Diverged(PmflError):
    """Numbers left the finite range; names the round and the clients it came from."""

    exit_code = 4
    default_code = "N100"

    def __init__(self, *, round: int, clients: Sequence[int], what: str = "the update") -> None:
        self.round = round
        self.clients = list(clients)
        shown = ", ".join(map(str, self.clients[:10])) + (" …" if len(self.clients) > 10 else "")
        who = f" of client{'s' if len(self.clients) > 1 else ''} {shown}" if self.clients else ""
        super().__init__(
            f"diverged in round {round}: {what}{who} is not finite or out of range",
            hint="lower training.client_lr or the method's server_lr",
        )


def _rebuild(kind: type[PmflError], fields: dict[str, object]) -> PmflError:
    error = kind.__new__(kind)
    error.__dict__.update(fields)
    error.args = (fields["message"],)
    return error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or lists all of them."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean `{near[0]}`?" if near else "known: " + ", ".join(known)
