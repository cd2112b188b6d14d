"""The program's answers to its agent, which asks for the login of the access handed over."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError
from shared_pathways_service.kube.handed_over import Login
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout

__all__ = ["LoginAnswers"]


class LoginAnswers:
    """Answers the agent, in a thread of its own, as a hook may take long.

    Args:
      read: Returns the present login; raises `SharedPathwaysError`.
      send: Sends a message to the agent.
      end: How long `close` waits for an answer in progress.
    """

    def __init__(
        self,
        read: Callable[[], Login],
        send: Callable[[Mapping[str, Any]], None],
        end: Timeout = timeouts.AGENT_EXIT,
    ) -> None:
        self._read = read
        self._send = send
        self._end = end
        self._questions: queue.SimpleQueue[bool] = queue.SimpleQueue()
        # (Started now: a process that ends cannot start threads, and has to delete its proxy.)
        self._thread = threading.Thread(target=self._run, name="sps-login", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Has the question answered soon."""
        self._questions.put(True)

    def close(self) -> None:
        """Ends the thread, unless it is in a hook that hangs."""
        self._questions.put(False)
        self._thread.join(self._end.s)

    def _run(self) -> None:
        while self._questions.get():
            try:
                answer = {"login": dataclasses.asdict(self._read())}
            except SharedPathwaysError as error:
                answer = {"error": error.to_json()}
            except Exception as error:  # noqa: BLE001 - the agent waits for an answer
                failed = AccessDenied(f"cannot read api_client: {type(error).__name__}: {error}")
                answer = {"error": failed.to_json()}
            self._send({"type": "login", **answer})
