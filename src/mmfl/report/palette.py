"""Colours and dashes that tell lines apart: by everyone, and in print."""

# Okabe and Ito's colours. In place of their black is a grey that is seen on dark paper too.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6E6E6E"]
DASHES = ["-", "--", "-.", ":"]
DIVERGING = ["#B35806", "#F1A340", "#F7F7F7", "#998EC3", "#542788"]  # from below zero over it to above


def style(group: int) -> tuple[str, str]:
    """Colour and dash of the n-th group; 28 of them differ.

    >>> style(0), style(8)
    (('#0072B2', '-'), ('#D55E00', '-'))
    """
    return COLOURS[group % len(COLOURS)], DASHES[group % len(DASHES)]
