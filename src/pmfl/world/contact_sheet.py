"""A page that shows a data set: facts, counts per class, and some training images of each. One file, no network."""

from __future__ import annotations

import base64
from io import BytesIO
from typing import Any

import numpy as np

from pmfl.world.datasets import Array, Dataset, Split

PER_CLASS = 12  # images shown
MOST_CLASSES = 200
GAP = 1  # pixels between images

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{{ name }}</title>
<style>
:root { color-scheme: light dark; --soft: #8884; --bar: #4a7fb5; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: 0 0 1.5rem; }
dt { opacity: .65; } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--soft); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.bar { width: 9rem; } td.bar div { background: var(--bar); height: .6rem; border-radius: 2px; min-width: 1px; }
img { image-rendering: pixelated; display: block; max-width: 100%; }
</style></head><body>
<h1>{{ name }}</h1>
<dl>{% for key, value in facts %}<dt>{{ key }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
<table>
<tr><th>class</th><th class="n">train</th><th class="n">test</th><th></th>
{% if images %}<th>train samples</th>{% endif %}</tr>
{% for row in rows %}<tr><td>{{ row.label }}</td><td class="n">{{ row.train }}</td><td class="n">{{ row.test }}</td>
<td class="bar"><div style="width:{{ row.share }}%"></div></td>
{% if images %}<td><img width="{{ row.width }}" alt="samples of {{ row.label }}"
src="data:image/png;base64,{{ row.image }}"></td>{% endif %}</tr>
{% endfor %}</table>
{% if hidden %}<p>and {{ hidden }} classes more.</p>{% endif %}
</body></html>
"""


def contact_sheet(dataset: Dataset) -> str:
    """The page as HTML text."""
    from jinja2 import Environment

    train, test = (_counts(split, dataset.classes) for split in (dataset.train, dataset.test))
    rows = []
    for label in range(min(dataset.classes, MOST_CLASSES)):
        row: dict[str, Any] = {
            "label": dataset.labels[label],
            "train": f"{train[label]:,}",
            "test": f"{test[label]:,}",
            "share": round(100 * train[label] / train.max(), 1),
        }
        if dataset.is_image:
            strip = _strip(dataset.train, label)
            zoom = max(1, round(32 / strip.shape[0])) if strip.shape[0] < 64 else 1
            row |= {"image": _png(strip), "width": strip.shape[1] * zoom}
        rows.append(row)
    template = Environment(autoescape=True).from_string(PAGE)
    return template.render(
        name=dataset.name,
        facts=facts(dataset),
        rows=rows,
        images=dataset.is_image,
        hidden=max(0, dataset.classes - MOST_CLASSES),
    )


def facts(dataset: Dataset) -> list[tuple[str, str]]:
    """What there is to say about a set, in words."""
    shape = dataset.train.x.shape[1:]
    said = [
        ("samples", f"{len(dataset.train):,} train, {len(dataset.test):,} test"),
        ("shape", f"{' x '.join(map(str, shape))} {'pixels' if dataset.is_image else 'features'}"),
        ("classes", f"{dataset.classes:,}"),
    ]
    if dataset.is_image:
        said.append(("mean and deviation", f"{_numbers(dataset.mean)} and {_numbers(dataset.std)}"))
        said.append(("augmentation", dataset.augment))
    if dataset.train.users is not None:
        sizes = np.bincount(dataset.train.users)
        sizes = sizes[sizes > 0]
        low, middle, high = np.percentile(sizes, [25, 50, 75])
        spread = f"{sizes.min()} to {sizes.max()} train samples each, quartiles {low:.0f}, {middle:.0f}, {high:.0f}"
        said.append(("users", f"{len(sizes):,}; {spread}"))
    return [*said, *dataset.notes.items()]


def _counts(split: Split, classes: int) -> Array:
    return np.bincount(split.y, minlength=classes)


def _numbers(values: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{value:.4f}" for value in values) + ")"


def _strip(split: Split, label: int) -> Array:
    """Some images of one class side by side, taken evenly from all of its samples."""
    mine = np.flatnonzero(split.y == label)
    chosen = mine[np.linspace(0, len(mine) - 1, min(PER_CLASS, len(mine))).astype(int)]
    images = split.x[chosen]
    padded = np.pad(images, ((0, 0), (0, 0), (0, GAP), (0, 0)), constant_values=255)
    strip = np.concatenate(list(padded), axis=1)[:, :-GAP]
    return strip[..., 0] if strip.shape[2] == 1 else strip


def _png(pixels: Array) -> str:
    from PIL import Image

    packed = BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()
