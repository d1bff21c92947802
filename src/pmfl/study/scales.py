"""A study made smaller, by one rule for all studies.

scale   rounds               seeds        clients   data             of what else is swept
full    as the study says    all          all       the study's      all values
half    1/2                  the first 3  all       the study's      all values
small   1/10, at least 20    the first 2  all       the study's      all values
tiny    6                    the first 2  20        digits, an MLP   the first and the last value

``train_every`` shrinks with the rounds. What a study says in [scale.NAME] comes on top. Only ``full`` is the paper's
setting; ``tiny`` is a test of the machinery, and never evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from pmfl.study.grid import Study
from pmfl.study.sections import Scales, Smaller, read
from pmfl.study.spec import RunSpec

Scale = Literal["full", "half", "small", "tiny"]
SCALES: tuple[Scale, ...] = get_args(Scale)

SHARE = {"full": 1.0, "half": 0.5, "small": 0.1}
MOST_SEEDS = {"half": 3, "small": 2, "tiny": 2}
FEWEST_ROUNDS = 20
TINY_ROUNDS, TINY_CLIENTS = 6, 20
WORDS = {
    "full": "full scale: the paper's setting",
    "half": "scale half: half the rounds, at most 3 seeds; not the paper's setting",
    "small": "scale small: a tenth of the rounds, at most 2 seeds; not the paper's setting",
    "tiny": "scale tiny: a test of the machinery on digits, and no evidence",
}


def scaled(study: Study, scale: Scale, seeds: int | None = None) -> Study:
    """The study with fewer seeds, and at ``tiny`` with less of everything; rounds follow in ``specs``."""
    own = _own(study, scale)
    sweep = dict(study.sweep)
    if scale == "tiny":
        sweep = {key: values if key in ("method", "seed") else _ends(values) for key, values in sweep.items()}
        if "data.dataset" in sweep:
            sweep["data.dataset"] = ["digits"]
        if "training.model" in sweep:  # those that differ in more than their name stay apart
            own_models = [
                {**given, "name": "mlp"} if isinstance(given, dict) else "mlp" for given in sweep["training.model"]
            ]
            sweep["training.model"] = [given for i, given in enumerate(own_models) if given not in own_models[:i]]
    most = own.seeds or MOST_SEEDS.get(scale)
    wanted = seeds if seeds is not None else most
    if "seed" in sweep and wanted is not None:
        sweep["seed"] = list(range(wanted)) if seeds is not None else list(sweep["seed"])[:wanted]
    return replace(study, sweep=sweep)


def specs(study: Study, scale: Scale) -> list[RunSpec]:
    """The runs of a study at a scale, each question once. ``study`` is one that ``scaled`` gave."""
    found: dict[str, RunSpec] = {}
    for spec in _smaller(study, scale).runs:
        small = _at(spec, study, scale)
        found.setdefault(small.question_id, small)
    return list(found.values())


def _smaller(study: Study, scale: Scale) -> Study:
    """What ``tiny`` and [scale.NAME] fix, as overrides that win over cases."""
    fixed: dict[str, Any] = {}
    if scale == "tiny":
        fixed = {"data.dataset": "digits", "data.clients": TINY_CLIENTS, "training.model": "mlp"}
    own = _own(study, scale)
    fixed |= {"data.clients": own.clients} if own.clients else {}
    fixed |= _dotted(own.set)
    keys = [key for key in fixed if key not in study.sweep]
    if not keys:
        return study
    return replace(study, case=[*study.case, {"if": {}, "set": {key: fixed[key] for key in keys}}])


def _at(spec: RunSpec, study: Study, scale: Scale) -> RunSpec:
    if scale == "full":
        return spec
    own, before = _own(study, scale), spec.training.rounds
    evaluation = spec.evaluation
    if scale == "tiny":
        rounds = own.rounds or TINY_ROUNDS
        # Two rounds between evaluations, so that there are curves to draw.
        evaluation = evaluation.model_copy(update={"every": min(evaluation.every, 2), "train_every": 2})
    else:
        rounds = own.rounds or max(min(before, FEWEST_ROUNDS), round(before * SHARE[scale]))
        train = -(-evaluation.train_every * rounds // before)
        evaluation = evaluation.model_copy(update={"train_every": train})
    training = spec.training.model_copy(update={"rounds": rounds})
    return spec.model_copy(update={"training": training, "evaluation": evaluation})


def _own(study: Study, scale: Scale) -> Smaller:
    found = read(Scales, dict(study.scale), f"study {study.id}: [scale]")
    return {"half": found.half, "small": found.small, "tiny": found.tiny}.get(scale, Smaller())


def _dotted(given: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Keys as a study writes them, however deep the table was in which they came."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        deep = isinstance(value, Mapping) and "name" not in value
        found |= _dotted(value, f"{before}{key}.") if deep else {f"{before}{key}": value}
    return found


def _ends(values: Sequence[Any]) -> list[Any]:
    return list(values) if len(values) < 3 else [values[0], values[-1]]
