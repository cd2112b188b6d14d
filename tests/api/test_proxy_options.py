"""Options of the proxy and of its pod."""

from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.api.requests import (
    ProxyOptions,
)
from shared_pathways_service.errors import InvalidRequestError
from tests.api import building
from tests.api.building import build


def test_an_unknown_proxy_option_is_ignored_with_a_warning() -> None:
    said = r"'colour:red' is ignored.*use_insecure_credentials"
    with pytest.warns(UserWarning, match=said) as warned:
        options = build(proxy_options=["colour:red", "sidecar:true"]).proxy_options
    assert options == ProxyOptions(sidecar=True)
    assert [warning.filename for warning in warned] == [building.__file__]


def test_the_keys_of_proxy_options_are_read_in_any_case() -> None:
    assert build(proxy_options=["SIDECAR:true"]).proxy_options == ProxyOptions(sidecar=True)


def test_proxy_options_are_read_in_upstreams_form() -> None:
    options = build(
        proxy_options=[
            "use_insecure_credentials:true",
            'xla_flags:"--xla_a --xla_b=1"',
            "xla_flags: --xla_c=x:y",
            "sidecar:False",
        ]
    ).proxy_options
    assert options.use_insecure_credentials
    assert not options.sidecar
    assert options.xla_flags == ("--xla_a", "--xla_b=1", "--xla_c=x:y")


def test_proxy_options_are_checked_in_each_form() -> None:
    options = ProxyOptions(xla_flags=["--xla_a"])  # type: ignore[arg-type]
    assert options.xla_flags == ("--xla_a",)
    assert build(proxy_options=options).proxy_options is options
    wrong_ones: list[dict[str, Any]] = [
        {"xla_flags": "--xla_a"},
        {"xla_flags": ("x",)},
        {"sidecar": 1},
        {"host_network": "true"},
        {"cpu": 4},
        {"memory": ""},
        {"node_selector": "a=b"},
        {"node_selector": {"a": 1}},
        {"node_selector": {1: "a"}},
        {"tolerations": "a"},
        {"tolerations": [7]},
        {"run_as_user": True},
        {"max_handles": 0},
        {"max_sessions": "3"},
        {"device_memory_limit_bytes": 1.5},
        {"host_memory_limit_bytes": 1 << 63},
    ]
    for wrong in wrong_ones:
        with pytest.raises(InvalidRequestError) as caught:
            ProxyOptions(**wrong)
        assert caught.value.field == "proxy_options"


def test_pod_options_are_read_and_add_up() -> None:
    options = build(
        proxy_options=[
            "cpu:500m",
            "memory:1.5Gi",
            "node_selector:cloud.google.com/gke-nodepool=cpu-np, empty=",
            "node_selector:zone=a",
            "tolerations:dedicated=proxies:NoSchedule, spot",
            "tolerations:example.com/x:NoExecute",
            "host_network:True",
            "run_as_user:0",
        ]
    ).proxy_options
    assert (options.cpu, options.memory) == ("500m", "1.5Gi")
    assert options.node_selector == {
        "cloud.google.com/gke-nodepool": "cpu-np",
        "empty": "",
        "zone": "a",
    }
    assert options.tolerations == (
        "dedicated=proxies:NoSchedule",
        "spot",
        "example.com/x:NoExecute",
    )
    assert options.host_network
    assert options.run_as_user == 0


def test_limits_are_read_and_absent_limits_are_not_requested() -> None:
    options = ProxyOptions.from_list(["max_handles:7", "host_memory_limit_bytes: 1000"])
    assert options.limits == {"host_memory_limit_bytes": 1000, "max_handles": 7}
    assert ProxyOptions().limits == {}
    for wrong in ("max_handles:0", "max_sessions:-1", "max_requests:x", "max_message_bytes:"):
        with pytest.raises(InvalidRequestError) as caught:
            ProxyOptions.from_list([wrong])
        assert caught.value.field == "proxy_options"
        assert caught.value.value == wrong
        assert "whole number" in caught.value.expected


def test_proxy_options_are_copies_and_comparable() -> None:
    selector = {"a": "b"}
    options = ProxyOptions(node_selector=selector)
    selector["a"] = "c"
    assert options.node_selector == {"a": "b"}
    assert hash(options) == hash(ProxyOptions(node_selector={"a": "b"}))
    assert options != ProxyOptions()
