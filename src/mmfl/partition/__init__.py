"""Who holds which examples: partitions of a data set over clients, one file per family.

A partition is a function `(dataset, clients, rng) -> Split`. It is a pure function of the generator it is given, every
example goes to at most one client, every client gets at least one (or the partition refuses), and everything is index
arithmetic: no data is copied. Tasks get generators of their own, so what a client is like (its labels, its cluster,
whether it is rich) differs from task to task; the option `seed`, where there is one, makes that choice from the seed
instead, and so the same for every task.
"""

from collections.abc import Callable

from mmfl.partition.grouped import clusters
from mmfl.partition.plain import Owners, iid, owners
from mmfl.partition.shards import Partition, Shards, Split
from mmfl.partition.sizes import SIZES, Sizes, SizesLike, dirichlet_sizes, equal, high_low, lognormal, uniform
from mmfl.partition.skewed import dirichlet, labels

PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "owners": owners,
    "labels": labels,
    "dirichlet": dirichlet,
    "clusters": clusters,
}

__all__ = [
    "PARTITIONS",
    "SIZES",
    "Owners",
    "Partition",
    "Shards",
    "Sizes",
    "SizesLike",
    "Split",
    "clusters",
    "dirichlet",
    "dirichlet_sizes",
    "equal",
    "high_low",
    "iid",
    "labels",
    "lognormal",
    "owners",
    "uniform",
]
