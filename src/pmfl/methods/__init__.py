"""Layer 1: one file per method. Each knows `pmfl.core` and, as a citation, other methods."""

BUILT_IN = {
    "pmfl": "pmfl.methods.pmfl:pmfl",
    "pmfl-mct": "pmfl.methods.ablations:pmfl_mct",
    "pmfl-awc": "pmfl.methods.ablations:pmfl_awc",
    "pmfl-hgm": "pmfl.methods.ablations:pmfl_hgm",
    "fedavg": "pmfl.methods.fedavg:fedavg",
    "fedau": "pmfl.methods.fedau:fedau",
    "fedau-mean": "pmfl.methods.averaged:fedau_mean",
    "fedvarp": "pmfl.methods.fedvarp:fedvarp",
    "mifa": "pmfl.methods.mifa:mifa",
    "fedhyper": "pmfl.methods.fedhyper:fedhyper",
    "fedppo": "pmfl.methods.fedppo:fedppo",
    "moon": "pmfl.methods.moon:moon",
    "fedprox": "pmfl.methods.fedprox:fedprox",
}
