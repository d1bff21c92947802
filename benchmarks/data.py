"""What data cost: first use, opens, memory, counts, the recording, partitions; written down as docs/results/data.md.

    python benchmarks/data.py --data DIR --to docs/results/data.md --pictures DIR

DIR holds what there is of svhn, cifar100, cinic10 and fashion, under their usual names, and of the recording
availability_flash_*.parquet; what is missing is said, and left out. All of it happens in a cache of its own.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

OPENS, HOLDERS, FIRST_USES, PARTICIPATIONS = 10, 4, 3, 40
RECORDING = "availability_flash_intervals.parquet"
NAMES = ("svhn", "cifar100", "cinic10", "fashion")
# What was published about these files, or counted when they were made: train, test, smallest and largest train class.
COUNTS = {
    "svhn": (73_257, 24_878, 4_659, 13_861),
    "cifar100": (5_000, 1_000, 50, 50),
    "cinic10": (5_837, 1_000, 578, 589),
    "fashion": (60_000, 10_000, 6_000, 6_000),
}
ENDS = {
    "svhn": ("0", "9"),
    "cifar100": ("apple", "worm"),
    "cinic10": ("airplane", "truck"),
    "fashion": ("T-shirt/top", "Ankle boot"),
}
OPEN = """
import sys, time
from pmfl.world import datasets
def resident():
    rows = (line.split() for line in open("/proc/self/smaps_rollup"))
    return {row[0]: int(row[1]) / 1e3 for row in rows if row[-1] == "kB"}
before, began = resident(), time.perf_counter()
data = datasets.load(sys.argv[1])
took = time.perf_counter() - began
print(took, flush=True)
sys.stdin.readline()  # until all are open
after = resident()
private = after["Private_Clean:"] + after["Private_Dirty:"]
print(after["Rss:"] - before["Rss:"], after["Rss:"], after["Pss:"], private, "torch" in sys.modules, flush=True)
sys.stdin.readline()
"""


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="where the sets and the recording are")
    parser.add_argument("--to", type=Path, default=Path("docs/results/data.md"), metavar="FILE.md")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="also write contact sheets there, as PNG and HTML")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PMFL_CACHE"], os.environ["PMFL_DATA"] = cache, str(given.data)
        before = (first_use(given.data), later_uses(), sets(given.pictures))
        after = (minibatches(), recording(given.data), partitions())
        lines = [line for part in (*before, *after) for line in part]
    given.to.parent.mkdir(parents=True, exist_ok=True)
    head = f"`make data-figures` on {machine()}; one-minute load at the start: {load:.1f}."
    given.to.write_text("\n".join(["# What data cost", "", head, "", *lines]).rstrip() + "\n")
    sys.stdout.write(given.to.read_text())


def machine() -> str:
    """The processor's name and how many cores may be used."""
    cpu = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpu.read_text()) if cpu.exists() else []
    return f"{names[0] if names else 'an unknown processor'}, {len(os.sched_getaffinity(0))} cores"


def table(*rows: tuple[object, ...]) -> list[str]:
    """Rows as Markdown; the first one is the head."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:], ""]


def place(name: str) -> str | None:
    """Where a set is: under its usual name, or as Parquet files of a part of it; None if it is nowhere."""
    from pmfl.world.sources import finding
    from pmfl.world.sources.known import KNOWN
    from pmfl.world.sources.raw import Options

    source = finding.search(KNOWN[name], Path("/nonexistent"), Options())
    parts = Path(os.environ["PMFL_DATA"]).glob(f"{name}*_train.parquet")
    return source.origin if source is not None else next(map(str, parts), None)


def first_use(data: Path) -> Iterator[str]:
    """The whole of `pmfl data get svhn`, each time into an empty cache."""
    yield from ("## First use", "")
    if place("svhn") is None:
        yield from ("SVHN is not here.", "")
        return
    rows: list[tuple[object, ...]] = [("`pmfl data get svhn --from DIR`", "seconds", "of processor", "load")]
    for attempt in range(FIRST_USES):
        with tempfile.TemporaryDirectory() as cache:
            began, before = time.perf_counter(), os.times()
            command = [sys.executable, "-c", "from pmfl.cli import main; main()", "data", "get", "svhn", "--from"]
            environment = {**os.environ, "PMFL_CACHE": cache}
            subprocess.run([*command, str(data)], check=True, capture_output=True, env=environment)
            took, after = time.perf_counter() - began, os.times()
        busy = after.children_user + after.children_system - before.children_user - before.children_system
        rows.append((f"into an empty cache, {attempt + 1}", f"{took:.1f}", f"{busy:.1f}", f"{os.getloadavg()[0]:.1f}"))
    yield from ("The whole command, from a shell to the shell. At most 60 s are wanted.", "", *table(*rows))


def later_uses() -> Iterator[str]:
    """Opens in new processes, and what several of them hold at once."""
    from pmfl.world.sources import opening

    yield from ("## Later uses", "")
    if (where := place("svhn")) is None:
        yield from ("SVHN is not here.", "")
        return
    opening.get("svhn", where)
    took = sorted(float(said[0]) for said in (held for _ in range(OPENS) for held in holders(1)))
    rows = holders(HOLDERS)
    more, whole, shared, own = (max(float(row[i]) for row in rows) for i in (1, 2, 3, 4))
    says = f"{HOLDERS} processes hold SVHN open, nothing is trained; the most that any of them has"
    yield from table(
        ("", "measured", "wanted"),
        (f"opening SVHN, {OPENS} new processes: median", f"{1e3 * took[OPENS // 2]:.0f} ms", "< 300 ms"),
        ("… the slowest", f"{1e3 * took[-1]:.0f} ms", "< 300 ms"),
        (f"{says}: resident, interpreter and libraries included", f"{whole:.1f} MB", "< 50 MB"),
        ("… of it its own, which no other process shares", f"{own:.1f} MB", ""),
        ("… its share of the memory of all (PSS)", f"{shared:.1f} MB", ""),
        ("… what opening added", f"{more:.1f} MB", ""),
        ("… torch was imported", ", ".join(sorted({row[5] for row in rows})), "False"),
    )


def holders(count: int) -> list[list[str]]:
    """Processes that open SVHN and wait until all have: seconds, then megabytes, of each."""
    command = [sys.executable, "-c", OPEN, "svhn"]
    pipe = subprocess.PIPE
    several = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(count)]
    said: list[list[str]] = [[] for _ in several]
    for _ in range(2):
        for process, words in zip(several, said, strict=True):
            assert process.stdout is not None
            words += process.stdout.readline().split()
        for process in several:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
    for process in several:
        process.communicate()
    return said


def sets(pictures: Path | None) -> Iterator[str]:
    """Every set that is here: counts beside what they must be, label names, statistics."""
    from pmfl.world import cache
    from pmfl.world.sources import opening

    yield from ("## What was read", "")
    rows: list[tuple[object, ...]] = [
        ("set", "layout", "train", "test", "shape", "a class has", "labels", "mean", "deviation", "as it must be")
    ]
    places = {name: place(name) for name in NAMES}
    for name, where in places.items():
        if where is None:
            continue
        data = opening.get(name, where)
        manifest = cache.open_entry(cache.names()[name]["key"]).manifest
        counts = np.bincount(data.train.y)
        found = (len(data.train), len(data.test), int(counts.min()), int(counts.max()))
        ends = (data.labels[0], data.labels[-1])
        agrees = (found, ends) == (COUNTS[name], ENDS[name])
        near = max(abs(a - b) for a, b in zip(manifest["mean"], data.mean, strict=True))
        rows.append(
            (
                name,
                manifest["reader"],
                f"{found[0]:,}",
                f"{found[1]:,}",
                " x ".join(map(str, data.train.x.shape[1:])),
                f"{found[2]:,} to {found[3]:,}",
                f"{data.classes}: {ends[0]} … {ends[1]}",
                ", ".join(f"{m:.4f}" for m in manifest["mean"]),
                ", ".join(f"{s:.4f}" for s in manifest["std"]),
                f"{'yes' if agrees else f'NO: {COUNTS[name]}, {ENDS[name]} expected'}; mean off by {near:.4f}",
            )
        )
        if pictures is not None:
            draw(pictures, name)
    yield from table(*rows)
    yield from (
        "Counts and the first and last label name are compared with what stands in `benchmarks/data.py`; the mean of",
        "the samples that were read, with the one that normalises them. cifar100 and cinic10 are slices of the whole",
        "sets here, and FedAU's code, which is followed, normalises Fashion-MNIST and CIFAR-100 with the numbers of",
        "MNIST and CIFAR-10.",
        "",
    )
    if missing := [name for name, where in places.items() if where is None]:
        yield from (f"Not here: {', '.join(missing)}.", "")


def draw(folder: Path, name: str) -> None:
    """The contact sheet of a set as a page, and its strips of images as one picture, twice as large."""
    from pmfl.world.contact_sheet import contact_sheet
    from pmfl.world.datasets import load

    folder.mkdir(parents=True, exist_ok=True)
    page = contact_sheet(load(name))
    (folder / f"{name}.html").write_text(page, encoding="utf-8")
    codes = re.findall(r'base64,([^"]+)"', page)
    strips = [Image.open(BytesIO(base64.b64decode(code))).convert("RGB") for code in codes]
    high = max(strip.height for strip in strips) + 1
    whole = Image.new("RGB", (max(strip.width for strip in strips), high * len(strips)), "white")
    for i, strip in enumerate(strips):
        whole.paste(strip, (0, i * high))
    whole.resize((2 * whole.width, 2 * whole.height), Image.Resampling.NEAREST).save(folder / f"{name}.png")


def recording(data: Path) -> Iterator[str]:
    """The FLASH recording as a pattern of 250 clients, and how quickly it is read and played."""
    from pmfl.core.keys import Key
    from pmfl.world.participation import summary
    from pmfl.world.recordings import read
    from pmfl.world.trace import trace

    yield from ("## The FLASH recording", "")
    file = data / RECORDING
    if not file.is_file():
        yield from (f"{RECORDING} is not here.", "")
        return
    began = time.perf_counter()
    found = read(file)
    took = time.perf_counter() - began
    low, middle, high = np.quantile(found.share, (0.25, 0.5, 0.75))
    pattern = trace(np.full(710, 0.1), Key.root(0), path=str(file))
    days = summary(pattern, 1440 * 5)
    state, rounds = pattern.start(), 2000
    start = time.thread_time()
    for t in range(rounds):
        _, state = pattern.row(state, t)
    each = (time.thread_time() - start) / rounds
    hour = int(np.argmax(days.by_hour))
    yield from table(
        ("", "measured"),
        ("read and checked", f"{1e3 * took:.0f} ms"),
        ("devices, intervals after those that touch are joined", f"{len(found.span):,}, {len(found.edges) // 2:,}"),
        ("days recorded", f"{found.span.min() / 86400:g} to {found.span.max() / 86400:g}"),
        ("share of its recording in which a device is available: quartiles", f"{low:.3f}, {middle:.3f}, {high:.3f}"),
        ("… the most", f"{found.share.max():.2f}"),
        ("710 clients over 5 days of 60 s rounds: mean share there", f"{days.mean:.4f}"),
        ("… in the fullest hour of the day, and the emptiest", f"{days.by_hour.max():.3f}, {days.by_hour.min():.3f}"),
        ("… the fullest hour of the day, common clock", f"{hour} to {hour + 1}"),
        ("one round of 710 clients, processor time", f"{1e6 * each:.0f} µs"),
    )


def minibatches() -> Iterator[str]:
    """Making a participation's mini-batches, beside training on them: processor time of one thread."""
    import torch

    from pmfl.core.client import train_client
    from pmfl.core.types import Downlink
    from pmfl.study.run import Run
    from pmfl.study.spec import run_spec

    torch.set_num_threads(1)
    rows: list[tuple[object, ...]] = [
        ("set", "network", "augmentation", "mini-batches", "FedAvg trains on them", "share")
    ]
    for name, augment in (("svhn", "crop"), ("cinic10", "crop-flip"), ("cifar100", "fedau")):
        if (where := place(name)) is None:
            continue
        data = {"dataset": name, "path": where, "clients": 50, "augment": augment}
        run = Run(run_spec({"method": "fedavg", "data": data, "training": {"model": f"cnn-{name}"}}))
        sent, rule = Downlink(run.w, torch.tensor(0.1), {}), run.method.client
        made, trained = [], []
        for k in range(PARTICIPATIONS):
            start = time.thread_time()
            work = run.world.population.work(0, k)
            middle = time.thread_time()
            train_client(rule, run.model, sent, rule.init(sent.w), work)
            made.append(middle - start)
            trained.append(time.thread_time() - middle)
        run.close()
        make, train = float(np.median(made)), float(np.median(trained))
        rows.append(
            (
                name,
                f"cnn-{name}",
                augment,
                f"{1e3 * make:.2f} ms",
                f"{1e3 * train:.1f} ms",
                f"{100 * make / train:.1f} %",
            )
        )
    yield from ("## Mini-batches", "", "Five of sixteen: drawn, read from the cache, augmented, normalised.", "")
    yield from table(*rows)


def partitions() -> Iterator[str]:
    """A million labels among ten thousand clients."""
    from pmfl.core.keys import Key
    from pmfl.world.partition import PARTITIONS

    labels, users = Key.root(0).numpy().integers(0, 10, 1_000_000), np.arange(1_000_000) // 50
    rows: list[tuple[object, ...]] = [("partition", "processor time", "smallest client", "largest")]
    for name, split in PARTITIONS.items():
        for alpha in (0.001, 0.1, 100.0) if name in ("slices", "dirichlet") else (None,):
            options = {} if alpha is None else {"alpha": alpha}
            start = time.thread_time()
            found = split(labels, 10, 10_000, Key.root(0), users, **options)
            took = time.thread_time() - start
            said = name if alpha is None else f"{name}, alpha = {alpha:g}"
            rows.append((said, f"{took:.2f} s", f"{found.sizes.min():,}", f"{found.sizes.max():,}"))
    yield from ("## Partitions", "", "1,000,000 labels of 10 classes, 10,000 clients; less than 1 s is wanted.", "")
    yield from table(*rows)


if __name__ == "__main__":
    main()
