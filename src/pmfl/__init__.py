"""Federated learning for clients whose data differ and who come and go as they please.

>>> import pmfl
>>> study = pmfl.load("smoke")
>>> for record in pmfl.Run(study.runs[0]):  # doctest: +SKIP
...     print(record.t, record.values)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pmfl.core.keys import Key as Key
    from pmfl.core.method import ClientRule as ClientRule
    from pmfl.core.method import Method as Method
    from pmfl.core.method import SelectRule as SelectRule
    from pmfl.core.method import ServerRule as ServerRule
    from pmfl.core.method import WeighRule as WeighRule
    from pmfl.core.types import Model as Model
    from pmfl.errors import PmflError as PmflError
    from pmfl.study.grid import Study as Study
    from pmfl.study.grid import load as load
    from pmfl.study.jobs import run_all as run_all
    from pmfl.study.run import Run as Run
    from pmfl.study.spec import RunSpec as RunSpec
    from pmfl.study.spec import run_spec as run_spec
    from pmfl.study.store import Record as Record
    from pmfl.study.store import Store as Store
    from pmfl.testing import check_method as check_method
    from pmfl.world.datasets import Dataset as Dataset
    from pmfl.world.datasets import from_arrays as from_arrays
    from pmfl.world.models import as_model as as_model
    from pmfl.world.models import replace_batchnorm as replace_batchnorm

__version__ = "0.1.0"

# Every public name and where it lives. Nothing is imported before it is used: `import pmfl` does not import torch.
_PUBLIC = {
    "ClientRule": "pmfl.core.method",
    "Dataset": "pmfl.world.datasets",
    "Key": "pmfl.core.keys",
    "Method": "pmfl.core.method",
    "Model": "pmfl.core.types",
    "PmflError": "pmfl.errors",
    "Record": "pmfl.study.store",
    "Run": "pmfl.study.run",
    "RunSpec": "pmfl.study.spec",
    "SelectRule": "pmfl.core.method",
    "ServerRule": "pmfl.core.method",
    "Store": "pmfl.study.store",
    "Study": "pmfl.study.grid",
    "WeighRule": "pmfl.core.method",
    "as_model": "pmfl.world.models",
    "check_method": "pmfl.testing",
    "from_arrays": "pmfl.world.datasets",
    "load": "pmfl.study.grid",
    "replace_batchnorm": "pmfl.world.models",
    "run_all": "pmfl.study.jobs",
    "run_spec": "pmfl.study.spec",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"pmfl has no `{name}`; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__
