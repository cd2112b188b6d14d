"""XLA's flags as a proxy is started with them."""

from __future__ import annotations

import os

import pytest

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.servers.xla.xla_flags import allow_long_callbacks, use_xla_flags


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("xla_cpu_enable_fast_math", "expected an XLA flag --xla_NAME"),
        ("--xla_no_such_flag=1", "unknown XLA flag --xla_no_such_flag"),
        (
            "--xla_cpu_parallel_codegen_split_count=-1",
            "--xla_cpu_parallel_codegen_split_count='-1' is not valid: expected a number from 0",
        ),
        (
            "--xla_reduce_window_rewrite_base_length=-7",
            "expected a number from 0 to 9223372036854775807",
        ),
        ("--xla_disable_all_hlo_passes", "expected false; xla_backend_optimization_level=0"),
        ("--xla_disable_all_hlo_passes=True", "expected false; xla_backend_optimization_level=0"),
    ],
)
def test_refused_at_the_start(
    flag: str, message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_before=1")
    with pytest.raises(InvalidRequestError, match=message):
        use_xla_flags(["--xla_tpu_of_another_machine=1", flag])
    assert "--xla_tpu_of_another_machine=1 is for TPUs only" in capfd.readouterr().err


def test_devices_wait_for_callbacks_unless_a_flag_says_how_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_before=1")
    allow_long_callbacks()
    # (Of a flag that is there twice XLA takes the last.)
    wait = "--xla_cpu_collective_call_terminate_timeout_seconds=3600"
    assert os.environ["XLA_FLAGS"] == f"{wait} --xla_before=1"


def test_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_before=1")
    flags = [
        "--xla_cpu_parallel_codegen_split_count=0",
        "--xla_disable_all_hlo_passes=false",
        "--xla_cpu_enable_fast_math",
    ]
    assert use_xla_flags(flags) == [
        ("xla_cpu_parallel_codegen_split_count", "0"),
        ("xla_disable_all_hlo_passes", "false"),
        ("xla_cpu_enable_fast_math", "true"),
    ]
    assert os.environ["XLA_FLAGS"] == " ".join(["--xla_before=1", *flags])
