"""How long the end of a connection waits for programs that call functions."""

from __future__ import annotations

import threading

import pytest

from harness.deadlines import deadline
from shared_pathways_service.jax_client.plugin import callback_barrier
from shared_pathways_service.jax_client.plugin.callback_barrier import CallbackBarrier

DEADLINE_S = deadline(60.0)


class NeverDone(threading.Event):
    """Stands for programs that do not end."""

    waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        assert timeout is not None
        return False


@pytest.mark.parametrize(("calls", "waits"), [((0, 0), 1), ((3, 3), 1), ((3, 4, 5, 5), 3)])
def test_it_waits_once_more_only_after_a_call(
    calls: tuple[int, ...], waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callback_barrier, "_tokens", list)
    barrier = CallbackBarrier()
    done = barrier._done = NeverDone()
    counts = iter(calls)
    barrier.wait(lambda: next(counts))
    assert done.waits == waits
    assert next(counts, None) is None
    barrier._thread.join(DEADLINE_S)
    barrier.close()


class Failed:
    """Stands for the token of a program that has failed."""

    def __init__(self, message: str) -> None:
        self._message = message

    def block_until_ready(self) -> None:
        raise RuntimeError(self._message)


@pytest.mark.parametrize(
    ("message", "is_new"),
    [
        ("INTERNAL: CpuCallback error calling callback: ValueError: mine", False),
        ("UNAVAILABLE: the proxy has ended", True),
    ],
)
def test_an_error_that_jax_has_logged_is_not_logged_again(
    message: str, is_new: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callback_barrier, "_tokens", lambda: [Failed(message)])
    barrier = CallbackBarrier()
    barrier.wait(lambda: 0)
    barrier.close()
    assert (message in caplog.text) == is_new
