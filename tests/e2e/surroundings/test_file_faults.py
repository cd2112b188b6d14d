"""Full disks, quotas and bad file systems: errors name what to do, and work that runs goes on.

(`stress.file_faults` has each operation fail. This is a part of it.)
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from stress.file_faults.roles import ROLES, faults_of


@pytest.mark.parametrize(
    ("role", "number", "step"),
    [
        ("client", errno.EROFS, 1),
        ("agent", errno.ENOSPC, 9),
        pytest.param("agent", errno.EIO, 13, marks=pytest.mark.thorough),
        pytest.param("service", errno.ENOSPC, 13, marks=pytest.mark.thorough),
        pytest.param("sockets", errno.EDQUOT, 13, marks=pytest.mark.thorough),
        pytest.param("starts", errno.EIO, 17, marks=pytest.mark.thorough),
        ("run", errno.EROFS, 37),
        ("submit", errno.EIO, 4),
        ("jobs", errno.ENOSPC, 13),
        pytest.param("elastic", errno.ENOSPC, 29, marks=pytest.mark.thorough),
        ("elastic", errno.ENOSPC, 58),
    ],
)
def test_some_operation_and_all_after_it_fail(
    role: str, number: int, step: int, tmp_path: Path
) -> None:
    found = list(faults_of(ROLES[role], number, tmp_path, step=step))
    assert len(found) > 1
    assert [wrong for wrong in found if wrong] == []
