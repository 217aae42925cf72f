"""Colours and dashes that tell lines apart, also for the colour-blind and in print."""

from collections.abc import Sequence

import numpy as np

# Okabe and Ito's colours. In place of their black is a grey that is seen on dark paper too.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6E6E6E"]
DASHES = ["-", "--", "-.", ":"]
NOTHING = "#9AA0A8"  # of a cell without a value: seen on white and on dark paper, and in no scale
DIVERGING = ["#B35806", "#F1A340", "#F7F7F7", "#998EC3", "#542788"]  # from below zero over it to above
SEQUENTIAL = ["#440154", "#3B528B", "#21918C", "#5EC962", "#FDE725"]  # viridis, nearly


def shade(share: float, scale: Sequence[str] = DIVERGING) -> list[float]:
    """The colour of a scale at a share of its length, in red, green and blue from 0 to 1.

    >>> shade(0.5) == [247 / 255, 247 / 255, 247 / 255]
    True
    """
    channels = ([int(colour[n : n + 2], 16) / 255 for colour in scale] for n in (1, 3, 5))
    return [float(np.interp(share, np.linspace(0, 1, len(scale)), channel)) for channel in channels]


def luminance(colour: list[float]) -> float:
    """How bright a colour is, from 0 to 1 (WCAG 2)."""
    linear = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def ink(share: float, diverging: bool = True) -> str:
    """Black or white, whichever is read better on the diverging or the sequential scale: a contrast of at least 4.5.

    >>> ink(0.5), ink(1.0)
    ('#000000', '#FFFFFF')
    """
    return "#000000" if luminance(shade(share, DIVERGING if diverging else SEQUENTIAL)) > 0.179 else "#FFFFFF"


def style(group: int) -> tuple[str, str]:
    """Colour and dash of the n-th group; 28 of them differ.

    >>> style(0), style(8)
    (('#0072B2', '-'), ('#D55E00', '-'))
    """
    return COLOURS[group % len(COLOURS)], DASHES[group % len(DASHES)]
