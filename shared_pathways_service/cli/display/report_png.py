"""Draws the timeline of a run as a picture, with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shared_pathways_service.elastic.accounting.goodput import Report
from shared_pathways_service.elastic.accounting.history import Sight
from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["write_png"]

_COLOURS: Final = {
    Sight.LOST: "tab:red",
    Sight.KILLED: "black",
    Sight.RESTORED: "tab:orange",
    Sight.GREW: "tab:green",
    Sight.SAVED: "tab:cyan",
    Sight.QUARANTINED: "tab:purple",
}


def write_png(report: Report, path: Path, *, title: str) -> None:
    """Draws the number of slices over time, with the events of the run.

    Args:
      report: The run.
      path: The file, which is overwritten.
      title: The title of the picture.

    Raises:
      SharedPathwaysError: matplotlib is not installed.
    """
    try:
        # Without pyplot a figure is drawn by Agg, which needs no display.
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError as error:
        raise SharedPathwaysError(
            "--png needs matplotlib, which is not installed",
            hint="pip install 'shared-pathways-service[report]'",
        ) from error

    figure = Figure(figsize=(12, 4), dpi=100, layout="constrained")
    slices, marks = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    ats = [count.at for count in report.slice_counts] + [report.wall_s]
    counts = [count.count for count in report.slice_counts]
    slices.stairs(counts, ats, fill=True, color="tab:blue")
    slices.set_ylim(bottom=0)
    slices.yaxis.get_major_locator().set_params(integer=True)
    slices.set_ylabel("slices")
    slices.set_title(f"{title}: goodput {report.goodput:.1%}")
    shown = [sight for sight in Sight if any(mark.sight is sight for mark in report.marks)]
    for row, sight in enumerate(shown):
        at = [mark.at for mark in report.marks if mark.sight is sight]
        marks.plot(at, [row] * len(at), "|", color=_COLOURS[sight], markersize=12)
    marks.set_yticks(range(len(shown)), [sight.value for sight in shown])
    marks.set_ylim(len(shown) - 0.5, -0.5)
    marks.set_xlabel("seconds")
    marks.set_xlim(0, report.wall_s or 1)
    figure.savefig(path, format="png")
