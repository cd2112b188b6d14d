"""The page as a tile in JupyterLab's launcher, through jupyter-server-proxy.

That package calls `server` by an entry point of ours. It starts the page for the user's first
click, asks the user's browser who it is, and serves the page below a path of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from shared_pathways_service.patience import timeouts

__all__ = ["server"]

_ICON = Path(__file__).parent / "static" / "icon.svg"


def server() -> dict[str, Any]:
    """Returns the server process as jupyter-server-proxy describes it."""
    sps = [sys.executable, "-P", "-m", "shared_pathways_service.cli"]
    return {
        # (A socket in a directory of the user, and no port, which all users of a machine reach.)
        "command": [*sps, "ui", "--no-browser", "--socket={unix_socket}"],
        "unix_socket": True,
        "timeout": timeouts.PAGE_TILE.s,
        "new_browser_tab": True,
        "launcher_entry": {"title": "Shared Pathways", "icon_path": str(_ICON)},
    }
