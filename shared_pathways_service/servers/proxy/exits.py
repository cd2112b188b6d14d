"""The exit codes of a proxy that ends itself, and the report of the reason."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from shared_pathways_service.runtime.glog import glog

__all__ = ["EXIT_FAILED", "EXIT_LOST_PROGRAM", "EXIT_REFUSED", "Ending"]

#: A failure here that a restart would not cure.
EXIT_FAILED = 1
#: The resource manager refused the tenant, or revoked its slices.
EXIT_REFUSED = 69
#: A program of a lost slice or an ended session still ran after the grace period.
EXIT_LOST_PROGRAM = 75


class Ending:
    """The end of this process; the first decision stands, with a report in a file. Thread-safe."""

    def __init__(self, report: str) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._decided = threading.Event()
        self.code = 0

    def decide(self, code: int, reason: str, **details: object) -> None:
        """Ends the process; with code 0 there is no report, else it has these details as fields."""
        with self._lock:
            if self._decided.is_set():
                return
            self.code = code
            if code:
                glog("E", f"Ending with exit code {code}: {reason}")
                self._write({"reason": reason, "exit_code": code, **details})
            self._decided.set()

    @property
    def decided(self) -> bool:
        """Whether the process will end."""
        return self._decided.is_set()

    def wait(self) -> int:
        """Waits for the decision, and returns the exit code."""
        self._decided.wait()
        return self.code

    def _write(self, report: Mapping[str, object]) -> None:
        if not self._report:
            return
        path = Path(self._report)
        try:
            # Readers see nothing or the whole file.
            partial = path.with_name(path.name + ".partial")
            partial.write_text(json.dumps(report) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            glog("E", f"Cannot write {path}: {error}")
