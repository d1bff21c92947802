import numpy as np
import pytest

from pmfl.core.keys import Key
from pmfl.errors import SpecError
from pmfl.study.run import Run
from pmfl.study.spec import run_spec
from pmfl.world.live import live


def test_live_participation_is_not_drawn() -> None:
    pattern = live(np.full(3, 0.5), Key.root(0))
    assert np.isnan(pattern.rates).all()
    tally = pattern.start()
    assert tally.counted.tolist() == [-1] * 3
    assert [part.tolist() for part in tally[1:]] == [[0] * 3] * 5


def test_a_simulation_of_it_is_refused() -> None:
    run = Run(run_spec({"method": "fedavg", "data": {"clients": 4}, "participation": {"pattern": "live"}}))
    assert run.world.rates is None
    with pytest.raises(SpecError, match="observes machines") as caught:
        next(iter(run))
    assert "pmfl deploy" in caught.value.hint
