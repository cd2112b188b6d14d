"""The page of `sps ui` in a notebook: a child that serves it as long as the kernel lives."""

from __future__ import annotations

import atexit
import contextlib
import json
import subprocess
import threading
from collections import deque
from collections.abc import Sequence

from shared_pathways_service.magics.child_commands import CommandFailed, start_command

__all__ = ["Pages"]

#: Lines of its standard error that are kept.
_LINES = 20


class Pages:
    """The pages that this kernel serves: one for each list of options."""

    def __init__(self) -> None:
        self._undo = contextlib.ExitStack()
        self._served: dict[tuple[str, ...], tuple[subprocess.Popen[str], str]] = {}
        atexit.register(self._undo.close)

    def open(self, options: Sequence[str]) -> str:
        """Returns the address of the page, which is started unless it is served already.

        Args:
          options: Those of `sps ui`.

        Raises:
          CommandFailed: It cannot be served.
        """
        known = self._served.get(tuple(options))
        if known is not None and known[0].poll() is None:
            return known[1]
        with contextlib.ExitStack() as undo:
            words = ["ui", "--json", "--no-browser", *options]
            process = undo.enter_context(start_command(words))
            assert process.stdout is not None
            assert process.stderr is not None
            # (What it prints later is read as well, so that it never waits for a reader.)
            printed: deque[str] = deque(["sps ui has ended"], _LINES)
            beside = threading.Thread(target=printed.extend, args=(process.stderr,), daemon=True)
            beside.start()
            line = process.stdout.readline()
            if not line:
                beside.join()
                raise CommandFailed(printed[-1].strip())
            address = str(json.loads(line)["url"])
            self._served[tuple(options)] = process, address
            self._undo.push(undo.pop_all())
        return address
