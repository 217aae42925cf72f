"""Runs: from a configuration to a directory with records and checkpoints, and back to data frames.

An experiment trains methods x seeds on a federation; its directory is described here, and written and read nowhere
else. Pictures and pages are the report's business.
"""
