"""The shape of the code base, as assertions: sizes, import directions, names that resolve."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import pmfl
from pmfl.methods import BUILT_IN

ROOT = Path(pmfl.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(file.relative_to(ROOT)) for file in FILES]

MOST_LINES = 400
MOST_LINES_OF_A_METHOD = 150

# What each layer may import of pmfl; a package not named here may import everything.
MAY_IMPORT = {
    "errors.py": set[str](),
    "core": {"core", "errors"},
    "methods": {"core", "errors", "methods"},
    "world": {"core", "errors", "world"},
    "engines": {"core", "errors", "engines", "methods", "world"},
}
CORE_MAY_IMPORT = {"annotated_types", "numpy", "torch", "safetensors", "pmfl", *sys.stdlib_module_names}
NO_PICKLE = {"pickle", "dill", "cloudpickle", "shelve"}


def imports(file: Path) -> Iterator[str]:
    """Full names of the modules a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("name", NAMES)
def test_files_are_short(name: str) -> None:
    limit = MOST_LINES_OF_A_METHOD if name.startswith("methods/") else MOST_LINES
    lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
    assert lines <= limit, f"{name} has {lines} lines, of at most {limit}: split the idea, not the file"


@pytest.mark.parametrize("name", NAMES)
def test_lower_layers_do_not_know_higher_ones(name: str) -> None:
    allowed = MAY_IMPORT.get(name.split("/")[0])
    if allowed is None:
        return
    for module in imports(ROOT / name):
        if module.split(".")[0] == "pmfl":
            parts = module.split(".")
            assert len(parts) > 1, f"{name} imports {module}"
            assert parts[1] in allowed, f"{name} imports {module}"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("core/")])
def test_the_core_knows_torch_and_numpy(name: str) -> None:
    for module in imports(ROOT / name):
        assert module.split(".")[0] in CORE_MAY_IMPORT, f"{name} imports {module}"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_pickled(name: str) -> None:
    assert NO_PICKLE.isdisjoint(module.split(".")[0] for module in imports(ROOT / name))


@pytest.mark.parametrize("name", NAMES)
def test_file_names_say_what_is_inside(name: str) -> None:
    assert Path(name).stem not in {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_method_is_where_its_name_says(name: str) -> None:
    module, function = BUILT_IN[name].split(":")
    method = getattr(import_module(module), function)()
    assert method.name == name


def test_every_method_file_is_reachable() -> None:
    """A file in methods/ is a built-in method, or part of one."""
    reached: set[str] = set()
    waiting = {target.split(":")[0] for target in BUILT_IN.values()}
    while waiting:
        module = waiting.pop()
        reached.add(module)
        file = ROOT.parent / Path(*module.split(".")).with_suffix(".py")
        waiting |= {name for name in imports(file) if name.startswith("pmfl.methods.")} - reached
    there = {f"pmfl.methods.{file.stem}" for file in (ROOT / "methods").glob("*.py") if file.stem != "__init__"}
    assert there == reached


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, pmfl; print(sorted({'torch', 'numpy', 'scipy', 'pandas', 'altair'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
