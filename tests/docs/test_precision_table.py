"""The page on stale updates quotes what was measured with updates in few bits."""

import json
import re
import runpy

import numpy as np
import pytest

from pages import ROOT, text_of

SCRIPT = runpy.run_path(str(ROOT / "benchmarks/precision.py"))
MEASURED = json.loads(SCRIPT["DATA"].read_text())
PAGE = "docs/methods/stale.md"


def test_the_table_is_made_from_the_accuracies_of_all_seeds():
    assert SCRIPT["table"](MEASURED["stored"]) in text_of(PAGE)
    for accuracies in (*MEASURED["stored"].values(), MEASURED["others"]):
        assert {len(seeds) for seeds in accuracies.values()} == {SCRIPT["SEEDS"]}


@pytest.mark.parametrize("method", MEASURED["others"])
def test_methods_without_a_memory_are_quoted_as_measured(method):
    assert f"{np.mean(MEASURED['others'][method]):.4f}" in re.search(r"Without a memory.*", text_of(PAGE))[0]


def test_losses_of_mifa_are_quoted_as_measured():
    mifa, text = MEASURED["stored"]["mifa"], text_of(PAGE)
    lost = {precision: np.subtract(mifa["float32"], seeds).mean() for precision, seeds in mifa.items()}
    assert f"`mifa` loses {lost['3-bit']:.4f}" in text
    assert f"({lost['3-bit, stochastic']:.4f} lost in 3 bits, {lost['2-bit, stochastic']:.4f} in 2)" in text


def test_the_difference_of_forecast_is_quoted_as_measured_and_within_what_a_tenth_of_the_memory_may_cost():
    forecast = MEASURED["stored"]["forecast"]
    assert SCRIPT["cell"](forecast, "3-bit") in text_of("docs/methods/forecast.md")
    lost = np.subtract(forecast["float32"], forecast["3-bit"])
    assert abs(lost.mean()) < lost.std(ddof=1) / len(lost) ** 0.5 < 0.003
