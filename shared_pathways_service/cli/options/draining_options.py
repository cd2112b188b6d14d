"""The options of commands that need a service without tenants."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["DrainTimeout", "Evict"]

DrainTimeout = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        min=0,
        metavar="SECONDS",
        help="For connections to end by themselves, while no new one is let in. "
        "0: refuse at once where there are any.",
    ),
]
Evict = Annotated[
    bool,
    typer.Option("--evict", help="End the connections that are left then: their work is lost."),
]
