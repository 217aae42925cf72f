"""The command line: a module for each family of commands, and what they share.

`program` holds all commands and `main`. The families are `training`, `sweeps`, `reports`, `export`, `reproduction`,
`listings`, `deploy` and `machines`; they share `options`, `console`, `help` and `completion`. Whatever imports torch
is imported inside the commands that need it, because that takes seconds, and help and completion answer at once.
"""

from mmfl.cli.program import EXIT_CODES, app, main

__all__ = ["EXIT_CODES", "app", "main"]
