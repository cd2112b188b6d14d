"""Options of commands that need a service without tenants."""

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
        help="Refuse new connections, and wait so long for existing ones to end. "
        "0: fail at once if there are any.",
    ),
]
Evict = Annotated[
    bool,
    typer.Option(
        "--evict", help="End the connections that are left after that; their work is lost."
    ),
]
