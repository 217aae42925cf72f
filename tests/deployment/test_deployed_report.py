"""The report of a deployment in which nodes failed."""

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
from inside import deployed

from mmfl.report.figures import FIGURES
from mmfl.report.page import write
from mmfl.report.sources import combine_sources, load_sources


def test_faults_are_counted_by_kind_in_figure_and_table(tmp_path):
    def trouble(node, round, reply):
        return b"nonsense" if node == 100 and round in (2, 3) else reply

    real = deployed("full", 4, 1.0, trouble=trouble, directory=tmp_path / "run")
    sources = load_sources([tmp_path / "run"])
    comparison = combine_sources(sources)
    figure = FIGURES["faults"](comparison)
    counted = {t: record.faults for t, record in enumerate(real.records, 1) if record.faults}
    assert set(counted) == {2, 3}
    assert dict(zip(figure.table["round"], figure.table["events"], strict=True)) == {
        t: faults["garbage"] for t, faults in counted.items()
    }
    (line,) = figure.panels[0].marks
    assert line.name == "garbage"
    assert line.y.tolist() == [0, counted[2]["garbage"], *[figure.table["events"].sum()] * 2]
    text = write(comparison, tmp_path / "report.html", sources).read_text()
    assert "what went wrong with nodes, in all rounds" in text
