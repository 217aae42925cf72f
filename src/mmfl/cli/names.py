"""Names that a shell completes, kept beside the tables they are keys of: those import torch, which takes seconds."""

METHODS = (
    *("fedavg", "multi-fedavg", "ranklist-multi-ucb", "pareto-multi-ucb", "mfa-rand", "mfa-rr", "fedcluster", "random"),
    *("mmfl-gvr", "mmfl-gvr-star", "mmfl-lvr", "mmfl-stalevr", "stalevr-opt", "mmfl-stalevre", "lvr-systematic"),
    *("stalevre-systematic", "fedvarp", "fedstale", "mifa", "scaffold", "roundrobin-gvr", "mmfl-group"),
    *("mmfl-group-inconsistent", "fedfair", "full"),
)
SOURCES = (
    *("digits", "mnist", "fashion-mnist", "emnist", "femnist", "cifar10", "shakespeare", "celeba", "faces"),
    *("synthetic", "synthetic-iid", "quadratic", "blobs", "images"),
)
REPRODUCTIONS = (
    *("mfa-fig1", "mfa-fig2", "mfa-fig3", "mfa-fig4", "mfa-table5", "mfa-table6", "mfa-bounds"),
    *("ucb-fig1", "ucb-fig2", "ucb-fig3", "ucb-fig4", "ucb-fig5", "ucb-fig6", "ucb-fig7", "ucb-fig8"),
    *("table1-3tasks", "table1-5tasks", "table1-costs", "fig2-global-step", "fig4-roundrobin", "fig3-beta"),
    *("fig5-staleness", "group-fig2a", "group-fig2b", "group-fig3", "group-fig4a", "group-fig4b", "learning-rates"),
)
TRACKERS = ("tensorboard", "mlflow", "wandb")
EXPORTS = ("png", "csv", "parquet")
DEVICES = ("cpu", "cuda")
ENGINES = ("auto", "vectorised", "sequential")
PRECISIONS = ("float32", "tf32", "bfloat16")

CONFIG = (
    *("method", "methods", "rounds", "rate", "seeds", "evaluate_every", "evaluate_last", "checkpoint_every"),
    *("diagnose", "engine", "precision", "trackers", "device", "python_path", "format"),
)
FEDERATION = (
    *("clients", "partition", "capacity", "lacks", "arrivals", "task_arrivals", "departures", "availability"),
    "seed",
)
TASK = ("name", "data", "model", "lr", "epochs", "batch_size", "loss", "metric", "partition")
PRIVACY = ("clip", "noise")
DEPLOYMENT = (
    *("clients", "method", "rounds", "rate", "seed", "evaluate_every", "evaluate_last", "checkpoint_every"),
    *("timeout", "gather", "patience", "least", "norm"),
)
