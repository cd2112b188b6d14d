from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book.records import Pool, Slice

POOL = Pool(kind=InstanceType.parse("tpuv6e:2x2"), name="tpuv6e:2x2", count=1, spares=0)
NAMES = st.text("a-.0129", min_size=1, max_size=9)


def sort_key(name: str) -> str:
    return Slice(id=name, pool=POOL, since=0.0, workers=[None]).sort_key


def natural(name: str) -> tuple[tuple[str | int, ...], str]:
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), name


def test_slices_are_sorted_by_the_values_of_the_numbers_in_their_names() -> None:
    names = ["slice-1", "slice-2", "slice-10", "slice-10-a", "slice-010-a", "slice-10-b"]
    assert sorted(names, key=sort_key) == sorted(names, key=natural)
    assert sort_key("slice-2") < sort_key("slice-10")


@given(NAMES, NAMES)
def test_texts_sort_names_as_their_parts_do(one: str, other: str) -> None:
    assert (sort_key(one) < sort_key(other)) == (natural(one) < natural(other))
