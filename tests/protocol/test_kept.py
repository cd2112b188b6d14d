"""An older client is still understood: no field or method of a kept version changed its meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol.kept import DIRECTORY, kept, messages, methods, spoken_now

VERSIONS = sorted(DIRECTORY.glob("*.binpb"))


def test_a_version_is_kept() -> None:
    assert VERSIONS


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_fields_mean_what_they_meant(path: Path) -> None:
    now = dict(messages(spoken_now()))
    looked_at = 0
    for name, old in messages(kept(path)):
        assert name in now, f"{name} is gone"
        numbers = {field.number: field for field in now[name].field}
        reserved = {n for r in now[name].reserved_range for n in range(r.start, r.end)}
        for field in old.field:
            looked_at += 1
            if field.number in reserved:
                continue
            assert field.number in numbers, f"{name}.{field.name}: {field.number} is gone"
            found = numbers[field.number]
            same = (field.type, field.label, field.type_name) == (
                found.type,
                found.label,
                found.type_name,
            )
            assert same, f"{name}: {field.number} was {field.name}, of another type"
        assert old.reserved_range == now[name].reserved_range[: len(old.reserved_range)]
    assert looked_at > 100


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_methods_take_and_return_what_they_did(path: Path) -> None:
    now = methods(spoken_now())
    for name, old in methods(kept(path)).items():
        assert name in now, f"{name} is gone"
        assert now[name] == old


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_values_of_enums_stay(path: Path) -> None:
    now = dict(messages(spoken_now()))
    for name, old in messages(kept(path)):
        for enum in old.enum_type:
            [found] = [e for e in now[name].enum_type if e.name == enum.name]
            values = {value.number: value.name for value in found.value}
            for value in enum.value:
                assert values[value.number] == value.name
