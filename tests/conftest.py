"""One thread per test process, and the same drawn examples every time.

Tensors in tests are tiny, and a second thread would only wait for the first. What hypothesis draws follows from each
test, so that a change fails by what it does and not by luck; `HYPOTHESIS_PROFILE=search make unit` looks for more.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is imported

from hypothesis import HealthCheck, settings

slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", slow_machine)
settings.register_profile("repeat", slow_machine, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))
