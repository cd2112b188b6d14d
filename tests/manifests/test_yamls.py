"""The manifests that are shown are those that the code makes."""

from __future__ import annotations

import pytest

from tests.manifests.documented import YAMLS, documented

#: Folders of other programs' files; tests/metrics/test_dashboards.py reads them.
_MONITORING = {"grafana", "prometheus"}


@pytest.mark.parametrize("name", sorted(documented()))
def test_manifest_is_what_the_code_makes(name: str) -> None:
    assert (YAMLS / name).read_text() == documented()[name]


def test_no_other_manifest_is_shown() -> None:
    files = (path.relative_to(YAMLS) for path in YAMLS.rglob("*") if path.is_file())
    shown = [str(path) for path in files if path.parts[0] not in _MONITORING]
    assert sorted(shown) == sorted(documented())
