"""`python -m mmfl`: the command line."""

from mmfl.cli import main

main()
