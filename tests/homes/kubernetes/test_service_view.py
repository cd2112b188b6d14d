"""What logs and events tell of a service that is not ready."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Any

from harness.processes import run_async
from shared_pathways_service.homes.kubernetes.service_view import ServiceView
from tests.cluster_state.services import SERVICE, head, worker
from tests.kube.nowhere import NowhereApi


class TellingApi(NowhereApi):
    """Tells why Jobs cannot create pods, and has logs without a word of it."""

    def __init__(self, *reasons: str) -> None:
        super().__init__()
        self._reasons = reasons

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        assert (method, path.rpartition("/")[2]) == ("GET", "events")
        about = {"kind": "Job", "name": "pw-worker-1"}
        return {"items": [{"involvedObject": about, "message": one} for one in self._reasons]}

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        assert path.endswith("/log")
        yield b"a line\n"


def found_anew(*reasons: str) -> list[bool]:
    """Asks twice about a service whose pods have only just started, and of which one is missing."""
    pods = [head(), worker(0, 0)]
    for pod in pods:
        [status] = pod["status"]["containerStatuses"]
        status["state"] = {
            "running": {"startedAt": datetime.datetime.now(datetime.UTC).isoformat()}
        }

    async def ask() -> list[bool]:
        api = TellingApi(*reasons)
        view = ServiceView(api, SERVICE, pods)
        found = [await view.find_reasons() for _ in range(2)]
        await api.close()
        return found

    return run_async(ask())


def test_a_reason_is_new_once() -> None:
    assert found_anew("exceeded quota: pods") == [True, False]


def test_times_alone_are_no_reason() -> None:
    """Whoever waits would ask again at once, for as long as pods have only just started."""
    assert found_anew() == [False, False]
