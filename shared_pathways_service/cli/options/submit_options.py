"""Options of `sps submit`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from shared_pathways_service.cli.options.option_groups import takes_group
from shared_pathways_service.cli.options.run_options import RunOptions
from shared_pathways_service.errors import InvalidRequestError

__all__ = [
    "Environment",
    "ImageName",
    "Name",
    "Retries",
    "Workdir",
    "WorkdirBucket",
    "keywords_of",
    "takes_run_options",
]

#: The options of `sps run` that jobs have as well.
_SHARED = (
    "slices",
    "tpu_type",
    "tpu_count",
    "proxy_options",
    "queue_timeout",
    "timeout",
    "priority",
    "elastic_slices",
    "local_devices",
    "strict",
    "tune_allocator",
)

Name = Annotated[str | None, typer.Option("--name", help="Name the job. [default: PROGRAM-xxxxx]")]
Environment = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="Set a variable of the program; without VALUE, to its value in this shell, which is "
        "best for secrets. Repeatable.",
    ),
]
Workdir = Annotated[
    Path,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Run the program in this directory. In a cluster its files are sent, except those "
        "that git ignores.",
    ),
]
WorkdirBucket = Annotated[
    str | None,
    typer.Option(
        "--workdir-bucket",
        metavar="URL",
        help="In a cluster, send the files through this bucket: gs://NAME[/PATH] or "
        "s3://NAME[/PATH], for directories of up to 1 GiB, compressed. [default: a Secret, for up "
        "to 512 KiB]",
    ),
]
ImageName = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="Run the program in this image, in a cluster. [default: the one that fits the "
        "service]",
    ),
]
Retries = Annotated[
    int,
    typer.Option(
        "--retries",
        metavar="N",
        help="Start the program again so often after it failed or lost its connection.",
    ),
]


def takes_run_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that `sps submit` shares with `sps run`, as the parameter `options`."""
    hints = get_type_hints(RunOptions, include_extras=True)
    options = {name: hints[name] for name in _SHARED}
    options["queue_timeout"] = Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Wait so long in the queue if slices are taken. [default: without limit]",
        ),
    ]
    return takes_group(command, "options", RunOptions, options)


def keywords_of(options: RunOptions, env: Sequence[str] | None) -> dict[str, Any]:
    """Returns the keywords of submit() that the options name.

    Raises:
      InvalidRequestError: A variable is missing in this shell, or two options name the slices.
    """
    given = options.keywords()
    used = {name: given[name] for name in _SHARED if name in given}
    if used["queue_timeout"] is None:
        used["queue_timeout"] = math.inf
    return {
        **used,
        "expected_tpu_instances": given["expected_tpu_instances"],
        "tune_allocator": options.tune_allocator,
        "env": _variables(env or ()),
    }


def _variables(texts: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for text in texts:
        name, is_given, value = text.partition("=")
        if not is_given:
            if name not in os.environ:
                raise InvalidRequestError("--env", name, "a variable of this shell, or NAME=VALUE")
            value = os.environ[name]
        found[name] = value
    return found
