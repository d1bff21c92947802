"""Who was there, round by round, in as many cells as a picture can show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pmfl.report.gather import FloatArray, IntArray, Took

if TYPE_CHECKING:
    from pmfl.world.participation import Pattern

ROWS, COLUMNS = 250, 600  # of a picture whose cells are single clients and rounds
BINS = 300  # columns of a picture of more rounds: enough of them in a cell for its share to say something


@dataclass(frozen=True)
class Attendance:
    """Participation of some rounds: a matrix to look at, and how often and how many."""

    cells: FloatArray  # [rows, columns] the share of each cell's clients and rounds, most frequent clients first
    bands: FloatArray  # [rows + 1] where rows begin and end, as ranks of clients
    shown: IntArray  # [rows] a client of each row
    times: IntArray  # [K] rounds in which each client was there
    by_round: IntArray  # [T] clients that were there
    exact: bool  # whether a cell is one client in one round

    @property
    def rounds(self) -> int:
        """How many rounds there were."""
        return len(self.by_round)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.times)

    @property
    def rates(self) -> FloatArray:
        """The share of rounds in which each client was there, [K]."""
        rates: FloatArray = self.times / max(self.rounds, 1)
        return rates

    @property
    def every_client(self) -> bool:
        """Whether rows hold all clients rather than some."""
        return bool(self.bands[-1] == self.clients)


def attended(took: Took) -> Attendance:
    """What a run's participation was: all clients, several to a row where there are many."""
    times = np.bincount(took.client, minlength=took.clients)
    order = np.argsort(-times, kind="stable")
    rank = np.empty(took.clients, np.int64)
    rank[order] = np.arange(took.clients)
    first_round, first_client = _starts(took.rounds, COLUMNS, BINS), _starts(took.clients, ROWS, ROWS)
    columns, rows = len(first_round), len(first_client)
    where = rank[took.client] * rows // took.clients * columns + took.t * columns // took.rounds
    counts = np.bincount(where, minlength=rows * columns).reshape(rows, columns)
    across, down = _sizes(first_round, took.rounds), _sizes(first_client, took.clients)
    return Attendance(
        counts / (down[:, None] * across[None, :]),
        np.append(first_client, took.clients).astype(np.float64),
        order[first_client],
        times,
        np.bincount(took.t, minlength=took.rounds),
        (rows, columns) == (took.clients, took.rounds),
    )


def foreseen(pattern: Pattern, rounds: int, rates: FloatArray, rows: int = 40) -> Attendance:
    """What the first rounds of a pattern are: at most so many clients to look at, evenly spaced by rate."""
    clients = len(rates)
    rows = min(rows, clients)
    order = np.argsort(-rates, kind="stable")
    shown = order[np.linspace(0, clients - 1, rows).round().astype(np.int64)]
    cells = np.zeros((rows, rounds))
    times, by_round, state = np.zeros(clients, np.int64), np.zeros(rounds, np.int64), pattern.start()
    for t in range(rounds):
        row, state = pattern.row(state, t)
        here = row.numpy()
        cells[:, t] = here[shown]
        times += here
        by_round[t] = here.sum()
    starts = _starts(rounds, COLUMNS, BINS)
    shares = np.add.reduceat(cells, starts, axis=1) / _sizes(starts, rounds)
    return Attendance(shares, np.arange(rows + 1.0), shown, times, by_round, len(starts) == rounds)


def binned(by_round: IntArray) -> tuple[IntArray, IntArray]:
    """First rounds and sizes of the bins in which rounds are drawn."""
    starts = _starts(len(by_round), COLUMNS, BINS)
    return starts, _sizes(starts, len(by_round))


def _starts(n: int, most: int, bins: int) -> IntArray:
    """Where bins begin: one for each of up to ``most``, else so many of nearly equal size."""
    count = n if n <= most else bins
    starts: IntArray = -(-np.arange(count, dtype=np.int64) * n // max(count, 1))
    return starts


def _sizes(starts: IntArray, n: int) -> IntArray:
    return np.diff(np.append(starts, n))
