"""The words for holders of slices."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shared_pathways_service.session.holder_text import holdings

KIND = "tpuv6e:2x2"


@pytest.mark.parametrize(
    ("holders", "wanted", "words"),
    [
        ((), (KIND,), ""),
        ((f"ada@vm: 1 x {KIND}",), (KIND,), "ada@vm holds 1"),
        ((f"ada@vm: 1 x {KIND}", f"ada@vm: 2 x {KIND}"), (KIND,), "ada@vm holds 3"),
        (
            (f"ada@vm: 1 x {KIND}", f"bob@vm: 1 x {KIND}", f"ada@vm: 1 x {KIND}"),
            (KIND,),
            "ada@vm holds 2, bob@vm holds 1",
        ),
        (
            (f"ada@vm: 1 x {KIND}", "ada@vm: 1 x tpuv5:2x2"),
            (KIND, "tpuv5:2x2"),
            f"ada@vm holds 1 x {KIND} + 1 x tpuv5:2x2",
        ),
        (("and 3 more",), (KIND,), "and 3 more"),
    ],
)
def test_each_holder_is_named_once(
    holders: Sequence[str], wanted: Sequence[str], words: str
) -> None:
    assert holdings(holders, wanted) == words
