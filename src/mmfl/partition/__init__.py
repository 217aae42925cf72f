"""Which client has which examples: partitions of a data set among clients, one file per family.

A partition is a function `(dataset, clients, rng) -> Split` that depends on nothing else. Every example goes to at most
one client, and every client gets at least one (otherwise it is an error). No data is copied: a `Split` consists of row
numbers. Each task has its own generator, so a client's labels, its cluster and its amount of data differ from task to
task; with the option `seed`, these choices are made from the seed instead and are the same for every task.
"""

from collections.abc import Callable

from mmfl.partition.plain import Owners, iid, owners
from mmfl.partition.shards import Partition, Shards, Split
from mmfl.partition.sizes import SIZES, Sizes, SizesLike, dirichlet_sizes, equal, high_low, lognormal, uniform
from mmfl.partition.skewed import clusters, dirichlet, labels

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
