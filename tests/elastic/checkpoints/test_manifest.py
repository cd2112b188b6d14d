"""What a checkpoint's files must be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.elastic.checkpoints.manifest import FileRecord, Manifest, ManifestError

records = st.builds(
    FileRecord, size=st.integers(0, 1 << 50), crc32=st.none() | st.integers(0, (1 << 32) - 1)
)
manifests = st.builds(
    Manifest,
    progress=st.fixed_dictionaries(
        {"step": st.integers(0), "loss": st.none() | st.floats(allow_nan=False)}
    ),
    files=st.dictionaries(st.text(min_size=1), records, max_size=4),
)


@given(manifests)
def test_it_survives_being_written(manifest: Manifest) -> None:
    assert Manifest.from_text(manifest.to_text()) == manifest
    assert manifest.difference(manifest.files) is None
    assert manifest.difference({**manifest.files, "more": FileRecord(size=1)}) is None


@given(manifests, st.data())
def test_a_changed_text_is_noticed(manifest: Manifest, data: st.DataObject) -> None:
    text = manifest.to_text()
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
    try:
        told = json.loads(changed)
    except ValueError:
        told = None
    if told == json.loads(text):
        return  # it says the same in other words
    with pytest.raises(ManifestError):
        Manifest.from_text(changed)


def test_a_nan_is_no_damage() -> None:
    text = Manifest(progress={"loss": float("nan")}, files={}).to_text()
    assert Manifest.from_text(text).progress["loss"] != 0


def test_differences() -> None:
    manifest = Manifest(
        progress={}, files={"a": FileRecord(size=1, crc32=5), "b": FileRecord(size=2)}
    )
    assert manifest.nbytes == 3
    assert not manifest.has_checksums
    b = FileRecord(size=2)
    assert manifest.difference({"b": b}) == "a is missing"
    wrong = "a has 2 bytes, and was written with 1"
    assert manifest.difference({"a": FileRecord(size=2), "b": b}) == wrong
    assert manifest.difference({"a": FileRecord(size=1), "b": b}) is None
    differs = manifest.difference({"a": FileRecord(size=1, crc32=6), "b": b})
    assert differs == "the content of a is not what was written: its checksum differs"


def test_a_newer_version() -> None:
    newer = {"version": 2, "progress": {}, "files": {}}
    from shared_pathways_service.elastic.checkpoints.manifest import _checksum

    with pytest.raises(ManifestError, match="version 2"):
        Manifest.from_text(json.dumps(newer | {"crc32": _checksum(newer)}))
