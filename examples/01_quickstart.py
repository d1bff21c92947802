"""Play one run from Python: iterate its rounds, look at what each shows, stop whenever you like."""

import pmfl

study = pmfl.Study(
    "quickstart",
    base={
        "data": {"dataset": "digits", "clients": 20},
        "participation": {"pattern": "bernoulli", "mean": 0.3},
        "training": {"rounds": 40, "client_lr": 0.05},
        "evaluation": {"every": 10},
    },
    sweep={"method": ["pmfl", "fedavg"]},
)

if __name__ == "__main__":
    for spec in study.runs:
        for record in pmfl.Run(spec):
            if "test/accuracy" in record.values:
                there, accuracy = len(record.took_part), record.values["test/accuracy"]
                print(
                    f"{spec.method.name:<8} round {record.t + 1:>3}  {there:>2} clients  test accuracy {accuracy:.1%}"
                )
