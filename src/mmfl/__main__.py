"""`python -m mmfl`: the command line."""

from mmfl.cli.commands import main

main()
