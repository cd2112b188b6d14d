"""`sps report`: reports on an elastic training run, from its ledger."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shared_pathways_service.cli.display.output import (
    AsJson,
    make_console,
    print_error,
    print_json,
)
from shared_pathways_service.cli.errors import NOT_READY
from shared_pathways_service.elastic.accounting.goodput import Report, report_of
from shared_pathways_service.elastic.accounting.history import Sight
from shared_pathways_service.elastic.accounting.timeline import Row, RowKind, draw, duration_text
from shared_pathways_service.elastic.run_ledger import LEDGER_NAME, read_ledger

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["report"]

_STYLES: Final = {
    Sight.LOST: "red",
    Sight.KILLED: "red",
    Sight.RESTORED: "yellow",
    Sight.GREW: "green",
    Sight.SAVED: "cyan",
    Sight.QUARANTINED: "magenta",
}


def report(
    run: Annotated[str, typer.Argument(help="Directory of the run, with its ledger.jsonl.")],
    *,
    as_json: AsJson = False,
    png: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the timeline into this file, too.", dir_okay=False),
    ] = None,
) -> None:
    """Show how an elastic training run spent its time, and draw its timeline."""
    try:
        events = read_ledger(run)
    except (FileNotFoundError, NotADirectoryError):
        raise _not_found(f"there is no {LEDGER_NAME} in {run}") from None
    found = report_of(events)
    if found is None:
        raise _not_found(f"{run}/{LEDGER_NAME} has no events of elastic training")
    if png is not None:
        from shared_pathways_service.cli.display.report_png import write_png  # noqa: PLC0415 - imports matplotlib

        write_png(found, png, title=run)
    if as_json:
        print_json({**found.as_fields(), "skipped_lines": events.skipped})
    else:
        _print(found, events.skipped)


def _not_found(message: str) -> typer.Exit:
    print_error(f"{message} hint: name the directory of the run")
    return typer.Exit(NOT_READY)


def _print(found: Report, skipped: int) -> None:
    console = make_console()
    _print_summary(console, found, skipped)
    seconds = {"goodput": found.good_s, **{c.value: s for c, s in found.badput_s.items()}}
    _print_table(
        console,
        ("TIME", "", "SHARE"),
        [
            (name, duration_text(spent), _share(spent, found.wall_s))
            for name, spent in seconds.items()
            if spent or name == "goodput"
        ],
    )
    _print_table(
        console,
        ("REPAIRS", "COUNT", "MEAN", "MEDIAN", "MAX", "STEPS LOST"),
        [
            (
                cause,
                str(repair.count),
                *(duration_text(s) for s in (repair.mean_s, repair.median_s, repair.max_s)),
                str(sum(i.lost_steps for i in found.incidents if i.cause == cause)),
            )
            for cause, repair in found.mttr.items()
        ],
    )
    _print_table(
        console,
        ("SLICE", "LOST"),
        [(name, f"{count} x") for name, count in found.slice_losses.items()],
    )
    if console.is_terminal:
        rows = draw(found, shutil.get_terminal_size().columns)
    else:
        rows = draw(found, 80, full="#")
    for row in rows:
        console.print(str(row), style=_style(row))


def _print_summary(console: Console, found: Report, skipped: int) -> None:
    outcome = found.outcome or "killed, or still running"
    console.print(f"since {found.began}: {duration_text(found.wall_s)}, {outcome}")
    console.print(f"goodput {_share(found.good_s, found.wall_s)}, last step {found.last_step or 0}")
    counts = {
        "steps completed": found.steps,
        "lost": found.steps_lost,
        "processes": found.processes,
        "attempts": found.attempts,
        "scale-ups": found.scale_ups,
        "checkpoints": found.checkpoints,
        "snapshots": found.snapshots,
        "saves failed": found.failed_saves,
        "quarantined": found.quarantined,
        "interruptions": len(found.incidents),
        "not repaired": sum(incident.repair_s is None for incident in found.incidents),
        "lines not read": skipped,
    }
    console.print(", ".join(f"{name}: {count}" for name, count in counts.items() if count))


def _print_table(console: Console, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table  # noqa: PLC0415 - slow to import

    console.print()
    if not rows:
        return
    table = Table(box=None)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _share(seconds: float, wall_s: float) -> str:
    return f"{seconds / wall_s if wall_s else 0.0:.1%}"


def _style(row: Row) -> str:
    if row.sight is not None:
        return _STYLES[row.sight]
    return "bright_black" if row.kind is RowKind.AXIS else "blue"
