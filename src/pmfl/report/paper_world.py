"""The figures of the paper that need no training: who holds what, who comes when, and what weights that makes.

They are computed from the specifications of a study's runs, so they need its data set's labels and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pmfl.report import panels as draw
from pmfl.report.gather import FloatArray, Rows, thin
from pmfl.report.paper_rows import by_run, facts, in_order, specs_facts
from pmfl.report.plates import LABELS, LEFT, RIGHT, Plate, laid_out
from pmfl.report.rasters import axis, raster, shade_legend
from pmfl.report.style import COLOURS, SOFT, percent_axis, stack, values
from pmfl.report.tables import percent
from pmfl.study.made import clients_of, pick
from pmfl.study.spec import RunSpec, run_spec

if TYPE_CHECKING:
    from pmfl.study.answers import Answers
    from pmfl.world.participation import Pattern

TWENTY = 20  # clients of the paper's picture
ROUNDS = 400  # of its picture of the patterns
WHO = ("mean", "frequent", "rare")
PRINTED_WEIGHTS = {"mean": (22.0, "about 22"), "frequent": (2.8, "above 2.8"), "rare": (30.0, "above 30")}


def twenty_clients(answers: Answers) -> list[Plate]:
    """Class distributions and participation frequencies of 20 clients."""
    spec = _specs(answers)[0]
    found = clients_of(spec)
    rates = found.pattern.rates
    order = np.argsort(-rates, kind="stable")
    shown = order[np.linspace(0, len(order) - 1, min(TWENTY, len(order))).round().astype(np.int64)]
    mix = found.partition.mix[shown]
    some = f"{len(shown)} of {len(rates):,} clients, evenly spaced by rate"
    caption = (
        f"{some}. Above: the share of rounds in which a client is there. Below: a column is a client, a row a class; "
        "the darker, the larger the class’s share of its samples. Clients that hold the active classes come often."
    )
    return [
        Plate(
            "twenty-clients",
            "What clients hold, and how often they come",
            specs_facts(answers, [spec]),
            caption,
            lambda width: _mix_chart(mix, rates[shown], found.dataset.labels, width),
        )
    ]


def patterns(answers: Answers) -> list[Plate]:
    """The participation patterns of a study over the first 400 rounds, for one client each."""
    first = {_pattern_name(spec): spec for spec in reversed(_specs(answers))}
    rows: Rows = []
    rounds = min(ROUNDS, *(spec.training.rounds for spec in first.values()))
    for name in in_order(map(_pattern_name, _specs(answers))):
        spec = first[name]
        found = clients_of(spec)
        k = int(np.abs(found.rates - spec.participation.mean).argmin())
        here = attendance(found.pattern, rounds)[:, k]
        said = f"{name} · p = {percent(float(found.rates[k]))} %"
        rows += [{"label": said, "x": int(t), "x2": int(t) + 1} for t in np.flatnonzero(here)]
        rows += [] if here.any() else [{"label": said, "x": 0, "x2": 0}]
    mean = _specs(answers)[0].participation.mean
    caption = (
        f"A mark: the client is there in that round. Of each pattern the client whose rate is nearest to "
        f"{percent(mean)} % of rounds; the first {rounds} rounds."
    )
    title = "One client under each participation pattern"
    return [
        Plate(
            "patterns",
            title,
            specs_facts(answers, list(first.values())),
            caption,
            lambda width: _pattern_chart(rows, rounds, width),
        )
    ]


def _pattern_name(spec: RunSpec) -> str:
    """A pattern, and by which rule where that is not the usual one."""
    rule = spec.participation.pattern.params.get("rule", "stationary")
    return spec.participation.pattern.name + ("" if rule == "stationary" else f", {rule}")


def weights(answers: Answers) -> list[Plate]:
    """Aggregation weights by round: the mean over all clients, a frequent client, a rare one; without training."""
    done = answers.done
    rates, tables = by_run(answers.clients, "rate"), {who: by_run(answers.rounds, who, "weight") for who in WHO}
    rows: dict[str, list[Rows]] = {who: [] for who in WHO}
    expected: dict[str, list[float]] = {who: [] for who in WHO}
    known: dict[str, list[float]] = {who: [] for who in WHO}
    for run in done:
        p = rates[run.run_id]["value"].to_numpy()
        picked = {"mean": np.arange(len(p)), **{who: np.array([k]) for who, k in pick(p).items()}}
        limit = expected_weight(p, int(run.spec["method"]["params"].get("cutoff", 0)))
        for who in WHO:
            if run.run_id in tables[who]:
                rows[who].append(_line(tables[who][run.run_id], f"seed {run.seed}"))
            expected[who].append(float(np.mean(limit[picked[who]])))
            known[who].append(float(np.mean(p[picked[who]])))
    return [_weights_plate(answers, rows, expected, known)] if any(rows.values()) else []


def expected_weight(p: FloatArray, cutoff: int) -> FloatArray:
    """The mean interval between events of clients that come independently with rates ``p``: (1 - (1 - p)^C) / p.

    >>> expected_weight(np.array([0.5, 0.02]), 50).round(2).tolist()
    [2.0, 31.79]
    """
    limit: FloatArray = (1 - (1 - p) ** cutoff) / p if cutoff else 1 / p
    return limit


def attendance(pattern: Pattern, rounds: int) -> FloatArray:
    """Who is there, [rounds, K]."""
    rows, state = [], pattern.start()
    for t in range(min(rounds, pattern.rounds or rounds)):
        row, state = pattern.row(state, t)
        rows.append(row.numpy())
    return np.stack(rows)


def _specs(answers: Answers) -> list[RunSpec]:
    return [run_spec(dict(run.spec)) for run in answers.runs]


def _line(table: pa.Table, label: str) -> Rows:
    t, value = table["t"].to_numpy(), table["value"].to_numpy()
    return [{"label": label, "x": int(at) + 1, "mean": round(v, 4)} for at, v in thin(t, value)]


def _weights_plate(
    answers: Answers,
    rows: dict[str, list[Rows]],
    expected: dict[str, list[float]],
    rates: dict[str, list[float]],
) -> Plate:
    names = {
        "mean": "mean of all clients",
        "frequent": f"client of p = {percent(float(np.mean(rates['frequent'])))} %",
        "rare": f"client of p = {percent(float(np.mean(rates['rare'])))} %",
    }
    labels = in_order(f"seed {run.seed}" for run in answers.done)
    panels = []
    for who, name in names.items():
        lines = [row for one in rows[who] for row in one]
        if not lines:
            continue  # in so few rounds a rare client may never have come
        printed, text = PRINTED_WEIGHTS[who]
        limit = float(np.mean(expected[who]))
        marks: Rows = [{"mean": printed, "text": f"dotted: printed, {text}", "kind": "printed"}]
        marks += [{"mean": limit, "text": f"dashed: expected, {limit:.1f}", "kind": "expected"}]
        domain = [0.0, 1.15 * max(printed, limit, float(np.quantile([row["mean"] for row in lines], 0.99)))]
        panels.append(
            (
                name,
                draw.line_panel(
                    lines, labels, "round", "weight x", domain, unit=draw.PLAIN, marks=marks, own_axis=True
                ),
            )
        )
    caption = (
        "How much a client counts when it takes part (x, before the division by the number of clients). Dashed: the "
        "mean interval that a client of this rate should have under independent participation, "
        "(1 − (1 − p)^C) / p. No model is trained for this figure."
    )
    return Plate(
        "weights",
        f"Aggregation weights of {answers.done[0].method}",
        facts(answers),
        caption,
        lambda width: laid_out(panels, width, most=3, narrowest=140, axes=True),
    )


def _mix_chart(mix: FloatArray, rates: FloatArray, labels: Sequence[str], width: int) -> Any:
    import altair as alt

    from pmfl.report.world_figures import label_axis

    classes, clients = mix.shape[1], len(mix)
    frame = width - LEFT - RIGHT
    x = axis("x", (0, clients), "client", shows=False)
    bars: Rows = [{"x": k, "x2": k + 0.86, "rate": round(float(rate), 4)} for k, rate in enumerate(rates)]
    side = percent_axis("share of rounds", tickCount=3, minExtent=LABELS, maxExtent=LABELS, titlePadding=3)
    top = alt.Chart(values(bars)).mark_rect(color=SOFT)
    above = top.encode(
        x=axis("x", (0, clients), None, shows=False), x2="x2:Q", y=alt.Y("rate:Q", axis=side), y2=alt.datum(0)
    )
    height = int(np.clip(16 * classes, 120, 320))
    y = axis("y", (0, classes), "class", reverse=True, **label_axis(labels), maxExtent=LABELS, titlePadding=3)
    below = raster(mix.T, x, y, (0, clients), (0, classes), frame, height)
    legend = shade_legend("share of a client’s samples" if width > 400 else "share")
    return alt.vconcat(
        stack(above, width=frame, height=70), stack(below, legend, width=frame, height=height), spacing=8
    )


def _pattern_chart(rows: Rows, rounds: int, width: int) -> Any:
    import altair as alt

    labels = in_order(row["label"] for row in rows)
    own = int(max(len(label) for label in labels) * 6.2) + 10
    lower = alt.Axis(title="round", grid=False, tickCount=5, format=",d")
    x = alt.X("x:Q", axis=lower, scale=alt.Scale(domain=[0, rounds], nice=False))
    side = alt.Axis(title=None, ticks=False, domain=False, labelLimit=own)
    y = alt.Y("label:N", sort=labels, axis=side, scale=alt.Scale(domain=labels, paddingInner=0.5))
    marks = alt.Chart(values(rows)).mark_bar(color=COLOURS[0]).encode(x=x, x2="x2:Q", y=y)
    return stack(marks, width=width - own - RIGHT, height=alt.Step(38))
