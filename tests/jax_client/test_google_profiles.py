"""The request for a profile to a service of Google's images is the one of pathwaysutils."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from shared_pathways_service.jax_client.plugin import traced_proxies

BUCKET = "gs://bucket/traces"
#: pathwaysutils imports JAX and a web server, in half a second.
upstream: Any = pytest.importorskip("pathwaysutils.profiling")


def options(**values: Any) -> Any:
    import jax

    made = jax.profiler.ProfileOptions()
    for name, value in values.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"host_tracer_level": 1},
        {"python_tracer_level": 0},
        {"python_tracer_level": 1, "duration_ms": 1500},
        {"advanced_configuration": {"a": True, "b": 3, "c": "text"}},
    ],
)
def test_the_request_is_upstreams(values: dict[str, Any]) -> None:
    # Both name a session before the request is made.
    given = options(**values, session_id="2026_11_30_23_00_00")
    assert traced_proxies.profile_request(BUCKET, given) == upstream._create_profile_request(
        BUCKET, given
    )


def test_a_request_without_options_is_upstreams() -> None:
    assert traced_proxies.profile_request(BUCKET, None) == upstream._create_profile_request(BUCKET)


def test_a_value_that_cannot_be_sent() -> None:
    given = SimpleNamespace(
        host_tracer_level=2, python_tracer_level=0, advanced_configuration={"a": 1.5}
    )
    with pytest.raises(ValueError, match=r"1\.5"):
        traced_proxies.profile_request(BUCKET, given)


class Googles:
    """A client of Google's proxy, which notes the programs that it runs."""

    platform_version = "another"

    def __init__(self) -> None:
        self.ran: list[str] = []


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Googles()

    def program(its: Any, text: str, *, has_result: bool) -> Any:
        assert its is made
        assert has_result
        return lambda: made.ran.append(text)

    monkeypatch.setattr(traced_proxies, "_program", program)
    traced_proxies.serve(made, "unix:/nowhere", None)
    yield made
    traced_proxies.end(made)


def test_a_profile_runs_the_program_twice(client: Googles) -> None:
    started: list[str] = []
    traced_proxies._start(BUCKET, None, lambda _options: started.append("here"))
    assert started == ["here"]
    [text] = client.ran
    request = json.loads(text)["profileRequest"]
    named = options(session_id=request["xprofTraceOptions"]["traceSessionName"])
    assert request == upstream._create_profile_request(BUCKET, named)
    assert traced_proxies._stop(lambda: "data") == "data"
    # The same executable ends what it began.
    assert client.ran == [text, text]


def test_a_local_directory_is_refused(client: Googles) -> None:
    with pytest.raises(ValueError, match="'/tmp/x', not gs://BUCKET/…: a service of Google's"):
        traced_proxies._start("/tmp/x", None, lambda _options: pytest.fail("it began here"))
    assert client.ran == []


def test_pathwaysutils_makes_its_request_itself(
    client: Googles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream._profile_state, "executable", SimpleNamespace())
    traced_proxies._start(BUCKET, None, lambda _options: None)
    assert traced_proxies._stop(lambda: "data") == "data"
    assert client.ran == []


def test_a_request_that_fails_ends_the_profile_here(client: Googles) -> None:
    def fail(_options: Any) -> None:
        raise RuntimeError("JAX has a profile")

    with pytest.raises(RuntimeError, match="JAX has a profile"):
        traced_proxies._start(BUCKET, None, fail)
    # It was begun, and is ended.
    assert len(client.ran) == 2
