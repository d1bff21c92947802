"""One thread per test process: tensors in tests are tiny, and a second thread would only wait for the first."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is imported
