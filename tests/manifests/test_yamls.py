"""The manifests that are shown are those that the code makes."""

from __future__ import annotations

import pytest

from tests.manifests.documented import YAMLS, documented


@pytest.mark.parametrize("name", sorted(documented()))
def test_manifest_is_what_the_code_makes(name: str) -> None:
    assert (YAMLS / name).read_text() == documented()[name]


def test_no_other_manifest_is_shown() -> None:
    files = (path for path in YAMLS.rglob("*") if path.is_file())
    assert sorted(str(path.relative_to(YAMLS)) for path in files) == sorted(documented())
