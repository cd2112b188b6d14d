"""Lines of executors in the logs of their workers."""

from __future__ import annotations

import json

import pytest

from shared_pathways_service.runtime.executor_lines import (
    ExecutorTag,
    message_of,
    read_tagged,
)

TAG = ExecutorTag(tenant="isc-proxy-ada", slice_id="tpuv6e-2x4-0", host=1, generation=12)


@pytest.mark.parametrize("text", ["I1126 a.py:1] computes", "", " indented", "{not json", "\u00fc"])
def test_a_line_is_read_as_it_was_written(text: str) -> None:
    assert read_tagged(TAG.line(text)) == (TAG, text)


def test_a_line_of_json_stays_one_and_another_becomes_one() -> None:
    for text, expected in (
        ('{"severity": "ERROR", "message": "no"}', {"severity": "ERROR", "message": "no"}),
        ("plain", {"severity": "INFO", "message": "plain"}),
        ("{}", {"severity": "INFO", "message": "{}"}),
    ):
        line = TAG.line(text, is_json=True)
        assert expected.items() <= json.loads(line).items()
        assert read_tagged(line) == (TAG, line)


@pytest.mark.parametrize(
    "line",
    ["", "I1126 worker.py:1] Serves", "{}", "[1]", '{"executor": 3}', '{"executor": "ada"}', "{"],
)
def test_other_lines_are_of_no_executor(line: str) -> None:
    assert read_tagged(line) is None


def test_an_executor_cannot_write_lines_of_another_tenant() -> None:
    other = ExecutorTag(tenant="bob", slice_id="slice-0", host=0, generation=1)
    for is_json in (False, True):
        for forged in (other.line("x"), other.line("x", is_json=True)):
            found = read_tagged(TAG.line(forged, is_json=is_json))
            assert found is not None
            assert found[0] == TAG


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("E1126 20:10:04.992524      7 a.py:1] no: I1126 1 1 a] b", "no: I1126 1 1 a] b"),
        ('{"severity": "ERROR", "message": "no\\ndriver", "pid": 7}', "no\ndriver"),
        *((line, line) for line in ("plain", "", "{", "{}", '{"message": 3}', "[1]")),
    ],
)
def test_the_message_of_a_line_is_without_its_time_and_place(line: str, message: str) -> None:
    assert message_of(line) == message
