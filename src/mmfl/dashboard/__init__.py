"""The dashboard: runs below a folder, shown by a browser on this machine while they go on.

`index` finds the runs of a folder, looks at them and keeps what was read of them. `drawing` makes the
report's figures of a selection, `answers` what the browser is told, and `server` tells it, unless the browser knows it
already. The page itself is in `static`. Nothing here writes into a run, or draws a figure of its own: figures are those
of `mmfl.report`.
"""
