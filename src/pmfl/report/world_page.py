"""The page of a world: its data, its clients and their comings and goings, before anything is trained."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pmfl.core.keys import Key
from pmfl.report.attendance import foreseen
from pmfl.report.gather import FloatArray, IntArray
from pmfl.report.html import Drawer, Section, download, pairs, write_page
from pmfl.report.records import flat_spec
from pmfl.report.tables import percent
from pmfl.study.settings import plain
from pmfl.study.spec import RunSpec

if TYPE_CHECKING:
    from pmfl.world.datasets import Dataset
    from pmfl.world.participation import Pattern
    from pmfl.world.partition import Partition

ROUNDS = 400  # of the pattern that are looked at
DAY = 86_400
CLOCKS = {  # what an hour is, by the trace's offset
    "common": "round 0 at midnight",
    "own": "hours count from the start of each device’s recording, whenever that was",
    "random": "hours count from round 0, at which clients are at different hours of their day",
}
CELLS = 100_000  # of the table of clients that lies within the page, which should stay small


def write_world(spec: RunSpec, to: Path) -> Path:
    """Write pictures of the world a run is played in as one HTML page; returns where it lies. Nothing is trained."""
    from pmfl.study.world import build_dataset, build_partition, build_pattern

    key = Key.root(spec.seed)
    dataset = build_dataset(spec)
    partition = build_partition(spec, key, dataset)
    rates, pattern = build_pattern(spec, key, partition)
    counts = label_counts(dataset, partition)
    draw = Drawer()
    sections = [
        _data(draw, dataset, partition, counts),
        _rates(draw, partition, rates, pattern, counts, dataset),
        _pattern(draw, spec, pattern),
    ]
    if spec.participation.pattern.name == "trace":
        sections.append(_hours(draw, spec, pattern))
    sections.append(_settings(spec))
    return write_page(
        to,
        kind="pmfl world",
        title=f"{dataset.name}, {len(partition.owned):,} clients",
        claim="",
        facts=[
            f"partition {spec.data.partition.name}",
            f"pattern {spec.participation.pattern.name}",
            f"seed {spec.seed}",
            "nothing was trained",
        ],
        notice_title="",
        notices=(),
        findings=(),
        sections=sections,
        downloads=[download("clients.csv", _csv(partition, rates, pattern, counts))] if counts.size <= CELLS else [],
        version=importlib.metadata.version("pmfl"),
        footer="Made by pmfl. Every method meets this world under this seed. The page fetches nothing.",
    )


def label_counts(dataset: Dataset, partition: Partition) -> IntArray:
    """How many samples of each label each client holds, [K, classes]."""
    clients, classes = len(partition.owned), dataset.classes
    owner = np.repeat(np.arange(clients), partition.sizes)
    label = dataset.train.y[np.concatenate(partition.owned)]
    return np.bincount(owner * classes + label, minlength=clients * classes).reshape(clients, classes)


def _data(draw: Drawer, dataset: Dataset, partition: Partition, counts: IntArray) -> Section:
    from pmfl.report.world_figures import SHOWN, label_picture

    sizes, held = partition.sizes, (counts > 0).sum(1)
    most = float(np.median(partition.mix.max(1)))
    numbers = {
        "training samples": f"{len(dataset.train):,}",
        "test samples": f"{len(dataset.test):,}",
        "labels": f"{dataset.classes:,}",
        "clients": f"{len(sizes):,}",
        "samples of a client": _range(sizes),
        "labels a client holds": _range(held),
        "share of its most frequent label": f"{percent(most)} %, median",
        **dataset.notes,
    }
    some = f" {SHOWN} of {len(sizes):,} clients are shown, evenly spaced in this order." if len(sizes) > SHOWN else ""
    caption = f"A column is a client, a row a label; the darker, the larger the label’s share of its samples.{some}"
    picture = draw(label_picture(partition.mix, dataset.labels), f"Raster of labels by clients. {caption}", caption)
    return Section("Who holds what", sheets=[pairs(numbers)], figures=[picture])


def _rates(
    draw: Drawer, partition: Partition, rates: FloatArray, pattern: Pattern, counts: IntArray, dataset: Dataset
) -> Section:
    from pmfl.report.world_figures import distributions, label_activity, label_rates

    p = pattern.rates
    lowest = int((p <= p.min()).sum())
    numbers = {
        "mean rate": f"{percent(float(p.mean()))} % of rounds",
        "lowest and highest": f"{percent(float(p.min()))} to {percent(float(p.max()))} %",
        "quartiles over clients": f"{', '.join(percent(float(q)) for q in np.quantile(p, (0.25, 0.5, 0.75)))} %",
        "clients at the lowest": f"{lowest:,} of {len(p):,}",
        "one over the lowest rate": f"{1 / p.min():,.1f}" if p.min() > 0 else "–",
    }
    apart = float(np.abs(p - rates).max())
    text = [f"The pattern has rates of its own, up to {percent(apart)} points from those that were asked for."]
    active = label_activity(counts, p)
    low, high = dataset.labels[int(active.argmin())], dataset.labels[int(active.argmax())]
    bias = (
        f"How often a sample of each label is there; dashed, of any label. Label {low} is there in "
        f"{percent(float(active.min()))} % of rounds and label {high} in {percent(float(active.max()))} %: an average "
        "over those who take part leans towards what is there often."
    )
    spread = f"Clients by training samples ({_range(partition.sizes)}) and by participation rate."
    return Section(
        "Who is there how often",
        text if apart else [],
        [pairs(numbers)],
        [
            draw(distributions(partition.sizes, p), f"Two histograms. {spread}", spread),
            draw(label_rates(counts, p, dataset.labels), f"Bar chart. {bias}", bias),
        ],
    )


def _pattern(draw: Drawer, spec: RunSpec, pattern: Pattern) -> Section:
    from pmfl.report.rasters import participation_picture

    rounds = min(ROUNDS, spec.training.rounds, pattern.rounds or ROUNDS)
    seen = foreseen(pattern, rounds, pattern.rates)
    some = "" if seen.every_client else f" {len(seen.shown)} clients are shown, evenly spaced by rate."
    caption = (
        f"A mark: the client is there in that round.{some} Below, how many are there in each round; dashed, their "
        "mean. On the right, the share of rounds in which a client is there; the line is its rate in the long run."
    )
    numbers = {
        "rounds looked at": f"{rounds:,}",
        "clients per round": f"{seen.by_round.mean():.1f} (from {seen.by_round.min():,} to {seen.by_round.max():,})",
        "mean rate, as it turned out": f"{percent(float(seen.rates.mean()))} %",
        "rounds without anybody": f"{int((seen.by_round == 0).sum()):,}",
        "clients that never came": f"{int((seen.times == 0).sum()):,}",
    }
    notes = [f"Notes on the pattern: {'; '.join(pattern.notes)}."] if pattern.notes else []
    figure = draw(participation_picture(seen, pattern.rates), f"Raster of clients by rounds. {caption}", caption)
    return Section(f"The first {rounds:,} rounds", notes, [pairs(numbers)], [figure])


def _hours(draw: Drawer, spec: RunSpec, pattern: Pattern) -> Section:
    from pmfl.report.world_figures import by_hour
    from pmfl.world.participation import summary

    given = spec.participation.pattern.params
    seconds, clock = float(given["round_seconds"]), CLOCKS[given["offset"]]
    days = max(1, min(7, int(spec.training.rounds * seconds / DAY)))
    rounds = min(int(np.ceil(days * DAY / seconds)), pattern.rounds or spec.training.rounds, spec.training.rounds)
    found = summary(pattern, max(rounds, 1), round_seconds=seconds)
    known = found.by_hour[~np.isnan(found.by_hour)]
    caption = (
        f"Mean share of clients that are there, by hour; {rounds:,} rounds of {seconds:g} s, {clock}. "
        f"From {percent(float(known.min()))} to {percent(float(known.max()))} %."
    )
    return Section("By hour", figures=[draw(by_hour(found.by_hour), f"Bar chart. {caption}", caption)])


def _settings(spec: RunSpec) -> Section:
    given = spec.model_dump(mode="json", include={"data", "participation", "seed"})
    return Section("Settings", sheets=[pairs({key: plain(value) for key, value in flat_spec(given).items()})])


def _csv(partition: Partition, rates: FloatArray, pattern: Pattern, counts: IntArray) -> str:
    labels = ",".join(f"label_{label}" for label in range(counts.shape[1]))
    lines = [f"client,samples,rate,rate_of_pattern,{labels}"]
    columns = zip(partition.sizes.tolist(), rates.tolist(), pattern.rates.tolist(), counts.tolist(), strict=True)
    lines += [
        f"{k},{size},{rate!r},{own!r},{','.join(map(str, held))}" for k, (size, rate, own, held) in enumerate(columns)
    ]
    return "\n".join(lines) + "\n"


def _range(numbers: IntArray) -> str:
    low, middle, high = int(numbers.min()), float(np.median(numbers)), int(numbers.max())
    return f"{low:,} to {high:,}, median {middle:,g}" if high > low else f"{low:,} each"
