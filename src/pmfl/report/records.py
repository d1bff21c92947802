"""The sections of a page that make a result checkable: settings, how to repeat it, and a hash per run."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pmfl.report.html import Section, Sheet, pairs
from pmfl.report.series import short_names
from pmfl.report.tables import minutes
from pmfl.study.grid import Study, built_in_studies, load
from pmfl.study.settings import look_up, plain
from pmfl.study.spec import RunSpec
from pmfl.study.store import RunRow


def settings_section(study: Study, runs: Sequence[RunRow]) -> Section:
    """What was varied, the parameters of each method, and what all runs share."""
    flat = [flat_spec({key: value for key, value in run.spec.items() if key not in ("method", "seed")}) for run in runs]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    shared = {key: plain(flat[0].get(key)) for key in keys if len({repr(one.get(key)) for one in flat}) == 1}
    varied = [
        [key, ", ".join(json.dumps(value) if isinstance(value, Mapping) else plain(value) for value in values)]
        for key, values in study.sweep.items()
    ]
    methods: dict[str, str] = {}
    for run in runs:
        own = [word for word in run.spec["method"]["params"] if f"method.{run.method}.{word}" not in study.sweep]
        said = ", ".join(f"{word} = {plain(run.spec['method']['params'][word])}" for word in own)
        methods.setdefault(run.method, said or "–")
    return Section(
        "Settings",
        sheets=[
            *([Sheet(("varied", "values"), (False, False), varied)] if varied else []),
            Sheet(("method", "parameters"), (False, False), [list(pair) for pair in methods.items()]),
            pairs(shared),
        ],
    )


def repeat_section(study: Study, specs: Sequence[RunSpec]) -> Section:
    """The exact command, and the study file where the command needs one."""
    played = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pmfl", "torch", "numpy"))
    text = f"The same command gives the same numbers, to the last bit, with {played} on the same kind of machine."
    ids = [spec.run_id for spec in specs]
    if study.id in built_in_studies() and [spec.run_id for spec in load(study.id).runs] == ids:
        return Section("How to repeat it", [text], code=[f"pmfl run {study.id}"])
    file = f"{study.id}.toml"
    how = f"Save the study as {file} first:"
    return Section("How to repeat it", [text, how], code=[study_file(study), f"pmfl run {file}"])


def study_file(study: Study) -> str:
    """A study as the TOML file that means the same."""
    import tomli_w

    given: dict[str, Any] = {"id": study.id, "title": study.title, "claim": study.claim}
    parts = ("base", "sweep", "method", "case", "scale", "report", "paper", "claims")
    given |= {name: getattr(study, name) for name in parts}
    text = tomli_w.dumps({key: _bare(value) for key, value in given.items() if value})
    # Lists of plain values on one line each.
    return re.sub(r"\[\n((?:    [^\[{\n]+,\n)+)\]", lambda found: f"[{' '.join(found[1].split())[:-1]}]", text).strip()


def runs_section(study: Study, specs: Sequence[RunSpec], runs: Sequence[RunRow]) -> Section:
    """Every run: how it ended, what it took, and the hash of its final model."""
    mine = {spec.run_id for spec in specs}
    foreign = [run.run_id for run in runs if run.run_id not in mine]
    text = ["The hash is of the final model’s numbers."]
    if foreign:
        text.append(f"* {len(foreign)} of the runs were played by other versions or another engine than these.")
    swept = [key for key in study.sweep if key not in ("method", "seed")]
    short = short_names(swept)
    headings = ["method", *(short[key] for key in swept), "seed", "status", "rounds", "minutes", "run", "SHA-256"]
    numbers = [heading in ("seed", "rounds", "minutes") for heading in headings]
    return Section("Runs", text, [Sheet(headings, numbers, [_cells(run, swept, foreign) for run in runs], small=True)])


def flat_spec(spec: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Dotted keys and scalars; a named thing is its name, and its parameters follow."""
    found: dict[str, Any] = {}
    for key, value in spec.items():
        if not isinstance(value, Mapping):
            found[f"{before}{key}"] = value
        elif "params" in value:
            found[f"{before}{key}"] = value["name"]
            found |= {f"{before}{key}.{word}": inner for word, inner in value["params"].items()}
        else:
            found |= flat_spec(value, f"{before}{key}.")
    return found


def _cells(run: RunRow, swept: Sequence[str], foreign: Sequence[str]) -> list[str]:
    found = [look_up(run.spec, key) for key in swept]
    return [
        run.method,
        *(plain(value["name"] if isinstance(value, Mapping) else value) for value in found),
        str(run.seed),
        run.status + (f", resumed {run.resumed}×" if run.resumed else ""),
        f"{run.t:,} of {run.total:,}" if run.t < run.total else f"{run.t:,}",
        minutes(run.seconds / 60 if run.t else None),
        run.run_id + ("*" if run.run_id in foreign else ""),
        run.model_sha256 or "–",
    ]


def _bare(value: Any) -> Any:
    """Plain dicts and lists without what is not set: TOML has no null."""
    if isinstance(value, Mapping):
        return {key: _bare(inner) for key, inner in value.items() if inner is not None}
    return [_bare(inner) for inner in value] if isinstance(value, list | tuple) else value
