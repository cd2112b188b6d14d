"""`sps checkpoints`: lists the checkpoints of a run, usable or not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.display.output import (
    AsJson,
    print_error,
    print_json,
    print_line,
    print_table,
)
from shared_pathways_service.cli.display.sizes import shown_size
from shared_pathways_service.cli.errors import NOT_READY
from shared_pathways_service.elastic.checkpoints.files import CheckpointInfo, list_checkpoints

__all__ = ["checkpoints"]


def checkpoints(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR", help="Directory of a run, or its checkpoints/; also gs:// and s3://."
        ),
    ],
    *,
    as_json: AsJson = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file, and compare its checksum.")
    ] = False,
) -> None:
    """List the checkpoints of a run: step, epoch, loss, size, state."""
    inner = f"{directory.rstrip('/')}/checkpoints"
    found = list_checkpoints(inner, checksums=verify)
    if not found:
        found = list_checkpoints(directory, checksums=verify)
    if not found:
        print_error(
            f"there are no checkpoints in {directory}"
            " hint: name the directory of a run, or of its checkpoints"
        )
        raise typer.Exit(NOT_READY)
    if as_json:
        print_json([_plain(info) for info in found])
    else:
        _print(found)


def _plain(info: CheckpointInfo) -> dict[str, Any]:
    data = dataclasses.asdict(info)
    if info.loss is not None and not math.isfinite(info.loss):
        data["loss"] = None  # JSON cannot represent it
    return data


def _print(found: Sequence[CheckpointInfo]) -> None:
    head = ("STEP", "EPOCH", "LOSS", "SIZE", "STATE", "WHEN")
    print_table(head, [tuple(_row(info)) for info in found])
    unusable = [info for info in found if info.reason is not None]
    if unusable:
        print_line("")
    for info in unusable:
        print_line(f"{info.path}: {info.reason}")


def _row(info: CheckpointInfo) -> Iterator[str]:
    yield str(info.step)
    yield "-" if info.epoch is None else str(info.epoch)
    yield "-" if info.loss is None else f"{info.loss:.6g}"
    yield "-" if info.bytes is None else shown_size(info.bytes)
    yield info.state
    yield info.time or "-"
