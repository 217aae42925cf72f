"""Runs: from a configuration to a directory with records and checkpoints, and back to data frames.

`config`, its schema and sections, and `presets` say what to run, `experiment` conducts it and `listener` is told of it.
`stopping` says when it ends early. `snapshots` and `checkpoint` save what a run needs to go on, `run` and `results`
hold the outcome, `trained` reads its models back, `exporting` writes them as files, and `directory` is the run on disk,
with its files named in `layout`; `restarts` finds the one that `torchrun` goes on with. `grid`, `sweep` and the modules
that begin like it do the same for many experiments at once. `records`, `status`, `lock`, `processes` and `listing` read
a run directory without torch, so that the command line answers at once; for that reason nothing is imported here.
Pictures and pages are the report's business.
"""
