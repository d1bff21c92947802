from __future__ import annotations

from pathlib import Path

import pytest

from pmfl.errors import SpecError
from pmfl.study.grid import Study, built_in_studies, load


def write(folder: Path, text: str) -> Path:
    file = folder / "mine.toml"
    file.write_text(text)
    return file


TINY = """
[base]
training = { rounds = 3, model = "mlp" }
data = { clients = 10 }
[sweep]
method = ["pmfl", "fedavg"]
seed = [0, 1]
[method.pmfl]
cutoff = 7
"""


def test_the_product_of_what_is_swept(tmp_path: Path) -> None:
    runs = load(write(tmp_path, TINY)).runs
    assert [(run.method.name, run.seed) for run in runs] == [("pmfl", 0), ("pmfl", 1), ("fedavg", 0), ("fedavg", 1)]
    assert runs[0].method.params["cutoff"] == 7
    assert all(run.training.rounds == 3 for run in runs)


def test_ids_name_the_question_not_the_engine(tmp_path: Path) -> None:
    file = write(tmp_path, TINY)
    plain, wide = load(file).runs, load(file, ["engine.lanes=4"]).runs
    assert [run.question_id for run in plain] == [run.question_id for run in wide]
    assert not {run.run_id for run in plain} & {run.run_id for run in wide}
    assert len({run.question_id for run in plain}) == 4


def test_a_default_spelled_out_is_the_same_question(tmp_path: Path) -> None:
    file = write(tmp_path, TINY)
    assert load(file).runs == load(file, ["participation.beta=0.1", "method.pmfl.local_models=5"]).runs


def test_set_overrides_swept_keys_and_makes_sweeps(tmp_path: Path) -> None:
    file = write(tmp_path, TINY)
    runs = load(file, ["method=fedau", "seed=3,4", "training.rounds=9"]).runs
    assert [(run.method.name, run.seed, run.training.rounds) for run in runs] == [("fedau", 3, 9), ("fedau", 4, 9)]
    assert [run.method.name for run in load(file, ["method=moon,mifa", "seed=0"]).runs] == ["moon", "mifa"]


def test_a_parameter_swept_concerns_its_method_only(tmp_path: Path) -> None:
    runs = load(write(tmp_path, TINY), ["method.pmfl.cutoff=20,50,100", "seed=0"]).runs
    found = {(run.method.name, run.method.params.get("cutoff")) for run in runs}
    assert len(runs) == 4
    assert found == {("pmfl", 20), ("pmfl", 50), ("pmfl", 100), ("fedavg", None)}


def test_named_things_take_their_parameters_beside_them(tmp_path: Path) -> None:
    file = write(tmp_path, TINY)
    run = load(
        file,
        ["participation.pattern=cyclic", "participation.cycle=50", "data.partition.alpha=0.5", "method=fedau"],
    ).runs[0]
    assert run.participation.pattern.name == "cyclic"
    assert run.participation.pattern.params["cycle"] == 50
    assert run.data.partition.name == "slices"
    assert run.data.partition.params["alpha"] == 0.5
    other = load(file, ["data.partition=shards"]).runs[0]
    assert other.data.partition.name == "shards"
    assert "alpha" not in other.data.partition.params


def test_python_and_toml_are_the_same_study(tmp_path: Path) -> None:
    study = Study(
        "mine",
        base={"training": {"rounds": 3, "model": "mlp"}, "data": {"clients": 10}},
        sweep={"method": ["pmfl", "fedavg"], "seed": [0, 1]},
        method={"pmfl": {"cutoff": 7}},
    )
    assert [run.run_id for run in study.runs] == [run.run_id for run in load(write(tmp_path, TINY)).runs]


@pytest.mark.parametrize("name", built_in_studies())
def test_every_built_in_study_is_sound(name: str) -> None:
    study = load(name)
    assert study.runs
    assert study.title


BAD_STUDIES = {
    "not toml": "base = [",
    "unknown section": "[bsae]\n",
    "base not a table": "base = 3",
    "sweep not a table": "sweep = 3",
    "sweep of one value": "[sweep]\nmethod = 'pmfl'",
    "sweep of nothing": "[sweep]\nmethod = []",
    "sweep of an unknown key": "[sweep]\nmehtod = ['pmfl']",
    "unknown key": "[base]\ntraining = { rouns = 3 }",
    "unknown part": "[base]\ntrainin = { rounds = 3 }",
    "rounds a word": "[base]\ntraining = { rounds = 'many' }",
    "no rounds": "[base]\ntraining = { rounds = 0 }",
    "half a round": "[base]\ntraining = { rounds = 2.5 }",
    "negative rate": "[base]\ntraining = { client_lr = -0.1 }",
    "rate zero": "[base]\ntraining = { client_lr = 0.0 }",
    "rate nan": "[base]\ntraining = { client_lr = nan }",
    "rate infinite": "[base]\ntraining = { client_lr = inf }",
    "growing rate": "[base]\ntraining = { lr_decay = 1.5 }",
    "no iterations": "[base]\ntraining = { iterations = 0 }",
    "no batch": "[base]\ntraining = { batch_size = 0 }",
    "unknown model": "[base]\ntraining = { model = 'cnn-svnh' }",
    "model not a name": "[base]\ntraining = { model = 3 }",
    "model's unknown parameter": "[base]\ntraining = { model = { name = 'mlp', wdith = 3 } }",
    "no clients": "[base]\ndata = { clients = 0 }",
    "unknown partition": "[base]\ndata = { partition = { name = 'dirichlett' } }",
    "partition's unknown parameter": "[base]\ndata = { partition = { alhpa = 0.1 } }",
    "partition's negative parameter": "[base]\ndata = { partition = { alpha = -1 } }",
    "mean over one": "[base]\nparticipation = { mean = 1.5 }",
    "mean negative": "[base]\nparticipation = { mean = -0.1 }",
    "beta zero": "[base]\nparticipation = { beta = 0 }",
    "floor over one": "[base]\nparticipation = { floor = 1.01 }",
    "unknown pattern": "[base]\nparticipation = { pattern = 'bernouli' }",
    "pattern's unknown parameter": "[base]\nparticipation = { pattern = 'cyclic', cycel = 100 }",
    "pattern's bad parameter": "[base]\nparticipation = { pattern = 'cyclic', cycle = 0 }",
    "unknown method": "[base]\nmethod = 'fedavgg'",
    "method a number": "[base]\nmethod = 3",
    "method's unknown parameter": "[base]\nmethod = { name = 'pmfl', cut_off = 50 }",
    "method's bad choice": "[base]\nmethod = { name = 'pmfl', timing = 'late' }",
    "method's bad number": "[base]\nmethod = { name = 'pmfl', temperature = 0 }",
    "method's nan": "[base]\nmethod = { name = 'pmfl', contrast_weight = nan }",
    "method's bad table": "[base]\nmethod = 'pmfl'\n[method.pmfl]\nclient = 3",
    "method without module": "[base]\nmethod = 'no_such_module_here:method'",
    "method without file": "[base]\nmethod = './no_such_file.py:method'",
    "method without function": "[base]\nmethod = 'pmfl.methods.fedavg:fedavgg'",
    "seed negative": "[base]\nseed = -1",
    "seed a word": "[base]\nseed = 'one'",
    "evaluation never": "[base]\nevaluation = { every = 0 }",
    "evaluation unknown": "[base]\nevaluation = { evry = 10 }",
    "engine unknown": "[base]\nengine = { kind = 'cloud' }",
    "ranks of nothing": "[base]\nengine = { kind = 'ranks:0' }",
    "ranks uncounted": "[base]\nengine = { kind = 'ranks:' }",
    "ranks of words": "[base]\nengine = { kind = 'ranks:two' }",
    "lanes zero": "[base]\nengine = { lanes = 0 }",
    "dtype unknown": "[base]\nengine = { dtype = 'float8' }",
}


@pytest.mark.parametrize("text", BAD_STUDIES.values(), ids=BAD_STUDIES.keys())
def test_a_wrong_study_is_refused_with_a_hint(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        load(file).runs  # noqa: B018
    assert caught.value.hint
    assert caught.value.code.startswith("S1")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "override",
    ["seed", "=3", "seed=", "sede=3", "training.rouns=3", "nonsense.key=1", "training.rounds=three", "method=nope"],
)
def test_a_wrong_override_is_refused_with_a_hint(tmp_path: Path, override: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(write(tmp_path, TINY), [override]).runs  # noqa: B018
    assert caught.value.hint


def test_hints_name_the_nearest_word(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"did you mean `training\.rounds`"):
        load(write(tmp_path, TINY), ["training.rouns=3"])
    with pytest.raises(SpecError, match="did you mean `cutoff`"):
        load(write(tmp_path, TINY), ["method.pmfl.cut_off=3"]).runs  # noqa: B018
    with pytest.raises(SpecError, match="did you mean `smoke`"):
        load("smok")


@pytest.mark.parametrize("name", ["no-such-study", "no/such/file.toml"])
def test_a_missing_study_is_refused(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(name)
    assert caught.value.hint


def test_a_binary_study_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="UTF-8"):
        load(file)
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(SpecError, match="cannot be read"):
        load(tmp_path / "folder.toml")


def test_a_file_of_the_users_own_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no')")
    with pytest.raises(SpecError, match="RuntimeError: no"):
        load(write(tmp_path, f"[base]\nmethod = '{tmp_path}/broken.py:method'")).runs  # noqa: B018


def test_the_source_of_a_users_own_method_is_part_of_the_question(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    text = "from pmfl.methods.fedavg import fedavg\ndef mine(*, server_lr: float = 1.0):\n    return fedavg()\n"
    own.write_text(text)
    file = write(tmp_path, f"[base]\nmethod = '{own}:mine'")
    before = load(file).runs[0].question_id
    own.write_text(text + "# changed\n")
    assert load(file).runs[0].question_id != before


def study_of(tmp_path: Path, text: str, name: str = "mine") -> Path:
    file = tmp_path / f"{name}.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_case_sets_what_follows_from_what_is_swept(tmp_path: Path) -> None:
    text = """
    [sweep]
    "data.dataset" = ["digits", "svhn"]
    method = ["pmfl", "fedau"]
    [[case]]
    if = { "data.dataset" = "svhn", method = ["fedau", "mifa"] }
    set = { "training.rounds" = 7, "method.fedau.cutoff" = 3 }
    """
    file = study_of(tmp_path, text)
    found = {(spec.data.dataset, spec.method.name): spec for spec in load(file).runs}
    assert [key for key, spec in found.items() if spec.training.rounds == 7] == [("svhn", "fedau")]
    assert found["svhn", "fedau"].method.params["cutoff"] == 3
    assert found["digits", "fedau"].method.params["cutoff"] == 50
    assert {spec.training.rounds for spec in load(file, ["training.rounds=9"]).runs} == {9}


def test_a_case_sees_the_method_that_is_not_named(tmp_path: Path) -> None:
    file = study_of(tmp_path, '[[case]]\nif = { method = "pmfl" }\nset = { "evaluation.deviation" = true }\n')
    assert load(file).runs[0].evaluation.deviation


@pytest.mark.parametrize("case", ['"x"', '{ if = { method = "pmfl" } }', '{ if = {}, set = { "data.datset" = "x" } }'])
def test_a_case_must_say_if_and_set_of_known_keys(tmp_path: Path, case: str) -> None:
    with pytest.raises(SpecError, match=r"case|unknown key"):
        load(study_of(tmp_path, f"case = [{case}]"))


def test_a_study_takes_settings_and_cases_from_the_one_it_extends(tmp_path: Path) -> None:
    first = study_of(
        tmp_path,
        "[base]\ntraining = { rounds = 5, client_lr = 0.3 }\n[sweep]\nseed = [1, 2]\n"
        '[[case]]\nif = { method = "pmfl" }\nset = { "evaluation.deviation" = true }\n',
        "first",
    )
    second = study_of(tmp_path, f'extends = "{first}"\n[base]\ntraining = {{ rounds = 6 }}\n', "second")
    (spec,) = load(second).runs
    assert (spec.training.rounds, spec.training.client_lr, spec.evaluation.deviation, spec.seed) == (6, 0.3, True, 0)
    with pytest.raises(SpecError, match="extends"):
        load(study_of(tmp_path, f'extends = "{tmp_path / "round.toml"}"', "round"))


def test_every_built_in_study_stands_for_runs() -> None:
    for name in built_in_studies():
        study = load(name)
        assert study.id == name
        assert study.runs
