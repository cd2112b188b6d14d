"""The far end of a resumable link in a proxy's pod."""

from __future__ import annotations

import base64

import pytest

from harness.session_requests import with_fields
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.link_parts import LinkInputs
from shared_pathways_service.manifests.proxy_job import (
    link_config_map,
    proxy_job,
)
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from tests.manifests.proxy_jobs import GOOGLES, OURS, container, pod, variables, with_options

LINK = LinkInputs(keep_s=1799.5, image="python:3.13-slim")
#: Of the Secret and the ConfigMap.
NAME = "isc-proxy-ada-x7k2p-6f9c1d0e"


def test_a_plain_link_has_no_far_end() -> None:
    for inputs in (GOOGLES, OURS):
        assert "initContainers" not in pod(inputs)
        assert "link" not in str(proxy_job(inputs))


def test_googles_proxy_has_a_sidecar_with_the_far_end_of_its_link() -> None:
    inputs = with_fields(GOOGLES, link=LINK)
    [sidecar] = pod(inputs)["initContainers"]
    assert (sidecar["name"], sidecar["image"]) == ("sps-link", "python:3.13-slim")
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["command"] == ["python3", "-I", "/opt/sps-link/link.pyz"]
    assert sidecar["args"] == [
        "--port=29002",
        "--target=127.0.0.1:29000",
        "--token_file=/var/run/secrets/sps.dev/token",
        "--keep_s=1800",
        "--bind_address=0.0.0.0",
    ]
    assert sidecar["startupProbe"]["tcpSocket"] == {"port": 29002}
    assert [port["containerPort"] for port in sidecar["ports"]] == [29002]
    volumes = {volume["name"]: volume for volume in pod(inputs)["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in sidecar["volumeMounts"]}
    assert all(mount["readOnly"] for mount in mounts.values())
    secret = volumes[mounts["/var/run/secrets/sps.dev"]["name"]]["secret"]
    assert secret == {"secretName": NAME, "defaultMode": 0o400}
    program = volumes[mounts["/opt/sps-link"]["name"]]["configMap"]
    assert program == {"name": NAME}
    # The proxy itself is the same as without, but ready only when the link can reach it.
    probe = {"tcpSocket": {"port": 29000}, "periodSeconds": 1, "failureThreshold": 86_400}
    assert container(inputs) == {**container(GOOGLES), "startupProbe": probe}
    assert (inputs.has_secret, inputs.has_token) == (True, False)


def test_the_sidecar_is_restricted_and_small() -> None:
    [sidecar] = pod(with_fields(GOOGLES, link=LINK))["initContainers"]
    user = pod(GOOGLES)["securityContext"]["runAsUser"]
    assert sidecar["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
    }
    assert sidecar["resources"] == {
        "requests": {"cpu": "100m", "memory": "64Mi"},
        "limits": {"memory": "512Mi"},
    }


def test_the_sidecar_is_never_root_and_can_read_its_token() -> None:
    inputs = with_options(with_fields(GOOGLES, link=LINK), "run_as_user:0")
    [sidecar] = pod(inputs)["initContainers"]
    assert sidecar["securityContext"]["runAsUser"] == 65534
    assert pod(inputs)["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "fsGroup": sidecar["securityContext"]["runAsGroup"],
    }


def test_the_sidecars_program_is_in_a_config_map_that_goes_with_the_job() -> None:
    inputs = with_fields(GOOGLES, link=LINK)
    made = link_config_map(inputs, b"\x00zip\xff", "uid-1")
    assert (made["metadata"]["name"], made["immutable"]) == (NAME, True)
    [owner] = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Job", "uid-1")
    assert names.bears_session(made, GOOGLES.session)
    assert base64.b64decode(made["binaryData"]["link.pyz"]) == b"\x00zip\xff"


def test_our_proxy_starts_the_far_end_itself() -> None:
    inputs = with_fields(OURS, link=LINK)
    assert "initContainers" not in pod(inputs)
    assert pod(inputs)["volumes"] == pod(OURS)["volumes"]
    options = parse_flags(ProxyServerOptions, container(inputs)["args"], variables(inputs))
    assert (options.link_port, options.link_keep_s) == (29002, 1800)
    assert [port["containerPort"] for port in container(inputs)["ports"]] == [29000, 29002]


def test_a_link_image_is_checked() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        LinkInputs(keep_s=600, image="python image")
    assert caught.value.field == "link_image"
