"""`docs/protocol.md` says what is so, of every request that there is."""

from __future__ import annotations

import pytest

from shared_pathways_service.protocol import ifrt
from shared_pathways_service.servers.proxy.session.handlers import HANDLERS
from tests.servers.proxy import protocol_table

FACTS = protocol_table.facts()


def test_the_document_is_what_the_code_says() -> None:
    assert protocol_table.DOCUMENT.read_text() == protocol_table.text(), (
        "run scripts/protocol-table"
    )


def test_every_request_is_in_it_and_shown_by_a_test() -> None:
    assert set(FACTS["requests"]) == set(protocol_table.kinds())
    for kind, entry in FACTS["requests"].items():
        assert entry["tests"], kind
        # A reason and what the user sees, where there is no handler and only there.
        not_served = {"reason", "user_sees"} <= entry.keys()
        assert not_served != (f"{kind}_request" in HANDLERS), kind
        since = entry.get("since", ifrt.PROTOCOL_MIN)
        assert ifrt.PROTOCOL_MIN <= since <= ifrt.PROTOCOL_MAX, kind


def test_all_else_that_is_in_it_is_shown_by_a_test() -> None:
    for entry in (*FACTS["calls"].values(), *FACTS["refused"], *FACTS["versions"]):
        assert entry["tests"], entry


def test_every_version_is_in_it() -> None:
    versions = [entry["version"] for entry in FACTS["versions"]]
    assert versions == list(range(ifrt.PROTOCOL_MIN, ifrt.PROTOCOL_MAX + 1))


@pytest.mark.parametrize("test", sorted(set(protocol_table.named_tests(FACTS))))
def test_the_tests_that_it_names_exist(test: str) -> None:
    assert protocol_table.exists(test)


def test_a_test_that_does_not_exist_is_seen() -> None:
    assert not protocol_table.exists("test_protocol.py::test_of_nothing")
    assert not protocol_table.exists("test_of_nothing.py::test_the_document_is_what_the_code_says")
    assert not protocol_table.exists("jax/test_jax.py[nothing]")
    assert not protocol_table.exists("jax/test_jax.py[mesh]")
