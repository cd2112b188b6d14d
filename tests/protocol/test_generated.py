"""The generated code that is committed is what the .proto files say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline

REPOSITORY = Path(__file__).parents[2]
PROTOCOL = Path("shared_pathways_service/protocol")


@pytest.mark.parametrize(
    "proto",
    sorted(p.relative_to(REPOSITORY) for p in (REPOSITORY / PROTOCOL).rglob("*.proto")),
    ids=lambda p: p.stem,
)
def test_generated_code_is_up_to_date(proto: Path, tmp_path: Path) -> None:
    has_service = "\nservice " in (REPOSITORY / proto).read_text()
    outputs = ["--python_out"] + (["--grpc_python_out"] if has_service else [])
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."]
    command += [f"{output}={tmp_path}" for output in outputs]
    subprocess.run([*command, str(proto)], cwd=REPOSITORY, check=True, timeout=deadline(60.0))
    made = sorted(tmp_path.rglob("*.py"))
    assert len(made) == len(outputs)
    for file in made:
        committed = REPOSITORY / file.relative_to(tmp_path)
        assert committed.read_text() == file.read_text(), (
            f"run scripts/generate_protos: {committed}"
        )
