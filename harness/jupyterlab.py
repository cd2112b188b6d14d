"""JupyterLab as a process of a test."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from harness.deadlines import deadline, wait_until
from harness.processes import REPOSITORY, ServerProcess, is_alive

__all__ = ["JupyterLab"]

_FLAGS = ("--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0")
#: No question about news, and no requests to the Internet.
_NOTIFICATIONS = {"fetchNews": "false", "checkForUpdates": False}
#: Seconds until the server is asked again to end, or is killed; usually it needs one or two.
_ENDING_S = 20.0


class JupyterLab:
    """A server of JupyterLab with settings of its own; use as a context manager.

    Args:
      root: Directory for its settings and its notebooks.
      base_url: The path below which it serves, as a hub's users have one.
    """

    def __init__(self, root: Path, base_url: str = "/") -> None:
        self.root = root
        self._notebooks = root / "notebooks"
        self._notebooks.mkdir()
        own = root / "jupyter"
        extension = own / "settings" / "@jupyterlab" / "apputils-extension"
        extension.mkdir(parents=True)
        settings = extension / "notification.jupyterlab-settings"
        settings.write_text(json.dumps(_NOTIFICATIONS))
        self._token = secrets.token_hex()
        self._process = ServerProcess(
            "jupyterlab",
            [
                *_FLAGS,
                f"--ServerApp.root_dir={self._notebooks}",
                f"--ServerApp.base_url={base_url}",
            ],
            env={
                **{f"JUPYTER_{name}_DIR": str(own) for name in ("CONFIG", "RUNTIME", "DATA")},
                "JUPYTERLAB_SETTINGS_DIR": str(own / "settings"),
                "JUPYTER_TOKEN": self._token,
                "IPYTHONDIR": str(own),
                "PYTHONPATH": str(REPOSITORY),
            },
            tells_ready=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def log(self) -> Sequence[str]:
        """Lines of its log and of its kernels' standard error."""
        return self._process.lines

    def add_notebook(self, name: str, cells: Sequence[str]) -> str:
        """Writes a notebook; returns its address as soon as the server runs.

        Args:
          name: Name of the notebook and of its workspace, where no other notebook is open.
          cells: Code of the cells.
        """
        # (Here, as the import takes two seconds of each collection.)
        import nbformat

        notebook = nbformat.v4.new_notebook()
        notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, self._notebooks / f"{name}.ipynb")
        return self.address(f"lab/workspaces/{name}/tree/{name}.ipynb")

    def address(self, path: str) -> str:
        """Returns an address of the server as soon as it runs, with its token."""
        address = r"(http://127\.0\.0\.1:(\d+)\S*/)lab\b"
        found = re.search(address, self._process.wait_for_line(address))
        assert found is not None
        # (It says so before it listens.)
        wait_until("JupyterLab to listen", lambda: _accepts(int(found[2])))
        return f"{found[1]}{path}?token={self._token}"

    def close(self) -> None:
        """Ends the server and its kernels; fails if a kernel does not end with the server."""
        below: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self._process.pid).children(recursive=True)
        self._stop()
        self._process.kill()
        try:
            wait_until(
                "the kernels to end", lambda: not any(map(is_alive, below)), seconds=_ENDING_S
            )
        finally:
            for process in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def _stop(self) -> None:
        # Twice: while a kernel is being restarted, the server drops the request, because
        # `KernelManager.ready.exception()` then raises InvalidStateError in its clean-up.
        for _ in range(2):
            self._process.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(deadline(_ENDING_S))
                return


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=deadline(5.0)).close()
    except ConnectionRefusedError:
        return False
    return True
