"""Connections that fail to start, or whose proxy ends."""

from __future__ import annotations

import os
import signal

import pytest

from shared_pathways_service import (
    CleanupError,
    Event,
    InvalidRequestError,
    ProxyFailed,
    TunnelError,
)
from shared_pathways_service.connection import Connection, jax_side
from tests.agent.support import eventually
from tests.connection.bench import Bench, JaxRuntimeError, failed

# ---- when starting fails


def test_a_failed_start_leaves_nothing_and_the_next_works(bench: Bench) -> None:
    bench.script = {"fail": {"create_proxy": ProxyFailed("no memory").to_json()}}
    it = bench.connect()
    with pytest.raises(ProxyFailed, match="no memory"):
        it.start()
    assert bench.is_clean()
    it.close()
    bench.script = {}
    with it:
        assert it.status().placed


def test_the_agent_explains_a_proxy_that_jax_cannot_reach(bench: Bench) -> None:
    def fail() -> None:
        bench.end_proxy("out of memory")
        raise TunnelError("connection refused")

    bench.jax.before = fail
    with pytest.raises(ProxyFailed, match="out of memory") as caught:
        bench.connect().start()
    assert isinstance(caught.value.__cause__, TunnelError)


def test_a_failed_attachment_is_undone(bench: Bench) -> None:
    def fail() -> None:
        raise InvalidRequestError("connect", "x", "another JAX")

    bench.jax.before = fail
    with pytest.raises(InvalidRequestError, match="another JAX"):
        bench.connect().start()
    assert bench.is_clean()


@pytest.mark.parametrize("kind", ["connect.preflight", "connect.create", "connect.probe.done"])
@pytest.mark.race
def test_an_interrupt_while_starting_is_undone(bench: Bench, kind: str) -> None:
    def interrupt(event: Event) -> None:
        if event.kind == kind:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        bench.connect(on_event=interrupt).start()
    assert bench.is_clean()
    with bench.connect() as it:
        assert it.status().placed


@pytest.mark.race
def test_an_interrupt_while_attaching_is_undone(bench: Bench) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    bench.jax.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.connect().start()
    assert bench.is_clean()


# ---- when the proxy ends


def run(bench: Bench, error: BaseException | None, *, wait: bool = True) -> Connection:
    """A block in which the proxy ends, and which then ends well or with an error."""
    with bench.connect() as it:
        bench.end_proxy()
        if wait:
            eventually(lambda: failed(it), "the news")
        if error is not None:
            raise error
    return it


def test_a_block_without_an_error_reports_an_ended_proxy(bench: Bench) -> None:
    with pytest.raises(ProxyFailed, match="killed after the grace") as caught:
        run(bench, None)
    assert caught.value.log_tail == ("last words",)


def test_jaxs_error_is_explained_by_a_later_event(bench: Bench) -> None:
    lost = JaxRuntimeError("UNAVAILABLE: Socket closed")
    with pytest.raises(ProxyFailed) as caught:
        run(bench, lost, wait=False)
    assert caught.value.__cause__ is lost


def test_jaxs_other_errors_are_left_alone(bench: Bench) -> None:
    with pytest.raises(JaxRuntimeError, match="INVALID"), bench.connect():
        raise JaxRuntimeError("INVALID_ARGUMENT: shapes")


def test_the_users_error_passes_with_a_note(bench: Bench) -> None:
    with pytest.raises(ValueError, match="mine") as caught:
        run(bench, ValueError("mine"))
    assert any("killed after the grace" in note for note in caught.value.__notes__)


def test_a_users_error_caused_by_jaxs_waits_for_the_event(bench: Bench) -> None:
    mine = ValueError("mine")
    mine.__cause__ = JaxRuntimeError("INTERNAL: Connection to IFRT proxy server was terminated")
    with pytest.raises(ValueError, match="mine") as caught:
        run(bench, mine, wait=False)
    assert any("killed after the grace" in note for note in caught.value.__notes__)


def test_a_warning_of_the_service_is_a_python_warning(bench: Bench) -> None:
    bench.script = {"warning": "JAX is older there"}
    with pytest.warns(UserWarning, match="JAX is older there"), bench.connect():
        pass


def test_flags_for_dumps_are_a_warning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_x=1 --xla_dump_to=/tmp/x --xla_dump_hlo_as_text")
    asked = r"XLA_FLAGS .*\(xla_dump_to, xla_dump_hlo_as_text\); a proxy ignores"
    with pytest.warns(UserWarning, match=asked) as told, bench.connect():
        pass
    assert len(told) == 1


def test_a_faulty_release_of_jax_is_warned_of_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxlib.version.__version__", "0.10.2")
    monkeypatch.setattr(jax_side, "_given", set())
    with pytest.warns(UserWarning, match="jaxlib 0.10.2 computes wrong sums"), bench.connect():
        pass
    # (A warning would be an error here.)
    with bench.connect():
        pass


def test_close_reports_a_failure_once(bench: Bench) -> None:
    it = bench.connect().start()
    bench.end_proxy()
    eventually(lambda: failed(it), "the news")
    with pytest.raises(ProxyFailed):
        it.close()
    it.close()


def test_the_next_start_reports_what_a_session_left_that_was_given_up(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.script, bench.delete_timeout_s = {"fail_deletes": 8}, 0.2
    given_up = bench.connect().start()
    given_up._give_up()
    bench.script, bench.delete_timeout_s = {}, 60.0
    it = bench.connect().start()
    assert it is not given_up
    assert it.status().placed
    it.close()
    said = capsys.readouterr().err
    assert "not confirmed deleted" in said
    assert f"sps delete {given_up.proxy_job_name}" in said
    given_up.close()
    eventually(bench.is_clean, "the deletion")


def test_a_close_without_the_service_says_what_is_left_and_its_agent_goes_on(
    bench: Bench,
) -> None:
    bench.script, bench.delete_timeout_s = {"fail_deletes": 8}, 0.2
    it = bench.connect().start()
    bench.home.tell(bench.session, "link.lost", "reset by the peer")
    eventually(lambda: it.link is not None, "the loss")
    with pytest.raises(CleanupError) as caught:
        it.close()
    assert it.proxy_job_name in caught.value.left[0]
    assert caught.value.command == f"sps delete {it.proxy_job_name}"
    assert it.link is None
    it.close()
    eventually(bench.is_clean, "the deletion")
