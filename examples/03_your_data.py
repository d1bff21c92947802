"""Bring your own samples, your own clients and your own network."""

import numpy as np
from torch import nn

import pmfl

# Three sensors, each with its own habits: rows of features, a label, and who each row came from.
rng = pmfl.Key.root(0).numpy()
sensor = np.repeat([0, 1, 2], 200)
x = rng.normal(size=(600, 4)) + sensor[:, None]
y = (x.sum(1) > 4).astype(np.int64)  # the first sensor hardly ever sees a 1, the last one hardly ever a 0
data = pmfl.from_arrays(x[::2], y[::2], x[1::2], y[1::2], users=sensor[::2], name="sensors")

# Any module that names its encoder and its classifier will do.
net = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(4, 16), nn.ReLU()), "classifier": nn.Linear(16, 2)})

spec = pmfl.run_spec(
    {
        "method": {"name": "pmfl", "cutoff": 20},
        "data": {"clients": 3, "partition": "user"},
        "participation": {"pattern": "markov", "mean": 0.5, "wake": 0.2},
        "training": {"rounds": 60, "client_lr": 0.1},
        "evaluation": {"every": 20, "train_every": 20},
    }
)

if __name__ == "__main__":
    for record in pmfl.Run(spec, dataset=data, model=net):
        if "accuracy" in record.per_client:
            print(f"round {record.t + 1}: accuracy on each client's data {record.per_client['accuracy'].round(2)}")
