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
    wide, tall = _bin(took.rounds), -(-took.clients // ROWS)
    columns, rows = -(-took.rounds // wide), -(-took.clients // tall)
    where = rank[took.client] // tall * columns + took.t // wide
    counts = np.bincount(where, minlength=rows * columns).reshape(rows, columns)
    down = np.diff(np.append(np.arange(0, took.clients, tall), took.clients))
    across = np.diff(np.append(np.arange(0, took.rounds, wide), took.rounds))
    return Attendance(
        counts / (down[:, None] * across[None, :]),
        np.append(0, np.cumsum(down)).astype(np.float64),
        order[::tall],
        times,
        np.bincount(took.t, minlength=took.rounds),
        wide == tall == 1,
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
    wide = _bin(rounds)
    starts = np.arange(0, rounds, wide)
    shares = np.add.reduceat(cells, starts, axis=1) / np.diff(np.append(starts, rounds))
    return Attendance(shares, np.arange(rows + 1.0), shown, times, by_round, wide == 1)


def binned(by_round: IntArray) -> tuple[IntArray, IntArray]:
    """First rounds and sizes of the bins in which rounds are drawn."""
    starts = np.arange(0, len(by_round), _bin(len(by_round)))
    return starts, np.diff(np.append(starts, len(by_round)))


def _bin(rounds: int) -> int:
    """How many rounds a column stands for."""
    return 1 if rounds <= COLUMNS else -(-rounds // BINS)
