"""Functions of a user's own libraries: how they are named, and where they are refused."""

from __future__ import annotations

import pytest

from shared_pathways_service.api.ffi_targets import FfiTarget, read_ffi_targets
from shared_pathways_service.api.proxy_options import ProxyOptions, split_options
from shared_pathways_service.cluster_state.preflight_checks import ffi_check
from shared_pathways_service.errors import InvalidRequestError


def test_a_target_is_read_and_written() -> None:
    target = FfiTarget.parse("my.scale=libscale-1.so:Scale_Handler", field="f")
    assert target == FfiTarget("my.scale", "libscale-1.so", "Scale_Handler")
    assert FfiTarget.parse(str(target), field="f") == target


@pytest.mark.parametrize(
    "text",
    [
        *("", "scale", "scale=lib.so", "scale=:S", "=lib.so:S", "scale=lib.so:", 3, None),
        *("scale=../lib.so:S", "scale=/lib.so:S", "scale=.lib:S", "scale=a/b.so:S"),
        *("sc ale=lib.so:S", "scale=lib.so:S S", "scale=lib.so:S\n", "1s=lib.so:S", "s=l:1"),
    ],
)
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        FfiTarget.parse(text, field="proxy_options")
    assert caught.value.field == "proxy_options"
    assert "NAME=LIBRARY:SYMBOL" in caught.value.expected


def test_a_name_stands_for_one_function() -> None:
    texts = ("a=lib.so:A", "b=lib.so:A")
    assert [target.name for target in read_ffi_targets(texts, field="f")] == ["a", "b"]
    with pytest.raises(InvalidRequestError, match="the name a once"):
        read_ffi_targets(("a=lib.so:A", "a=lib.so:B"), field="f")


def test_a_proxy_has_a_bounded_number_of_them() -> None:
    texts = [f"a{number}=lib.so:A" for number in range(65)]
    assert len(read_ffi_targets(texts[:64], field="f")) == 64
    with pytest.raises(InvalidRequestError, match="at most 64") as caught:
        read_ffi_targets(texts, field="f")
    assert caught.value.value == "65 ffi_targets"


def test_they_are_an_option_of_the_proxy() -> None:
    texts = ("a=lib.so:A", "b=lib.so:B", "c=lib.so:C")
    words = split_options(["ffi_targets:a=lib.so:A,b=lib.so:B,cpu:8", "ffi_targets:c=lib.so:C"])
    assert ProxyOptions.from_list(words) == ProxyOptions(ffi_targets=texts, cpu="8")
    for wrong in ("a", ("a",), (1,), 1):
        with pytest.raises(InvalidRequestError, match="proxy_options"):
            ProxyOptions(ffi_targets=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="once"):
        ProxyOptions.from_list(["ffi_targets:a=lib.so:A", "ffi_targets:a=lib.so:B"])


def test_a_cluster_refuses_them() -> None:
    check = ffi_check(ProxyOptions(ffi_targets=("a=lib.so:A",)))
    assert isinstance(check.error, InvalidRequestError)
    assert "--allow-ffi-libraries" in str(check.error)
