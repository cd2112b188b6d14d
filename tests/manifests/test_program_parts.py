"""Which proxies keep compiled programs, and where."""

from __future__ import annotations

import dataclasses

import pytest

from harness.session_requests import job_inputs
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.cluster_state.service_reading import read_inputs
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.manifests.proxy_inputs import IdentityInputs, ProxyJobInputs
from shared_pathways_service.manifests.proxy_job import proxy_job
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.manifests.verified_users.program_parts import programs_claim
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions

SERVICE = ServiceInputs(
    name="pw",
    instances={"tpuv6e:2x2": 1},
    image="r.io/shared-pathways-service/server:0.1.0",
    verify_users=True,
    compiled_programs=True,
)
ADA = IdentityInputs(audience="pw.default.sps.dev", user="ada")
PROXY = job_inputs(
    name="isc-proxy",
    namespace="default",
    session="00000000-0000-0000-0000-000000000000",
    service_address="pw:29001",
    image="r.io/shared-pathways-service/proxy_server:0.1.0",
    virtual_slices=("tpuv6e:2x2",),
    identity=ADA,
    programs_claim=programs_claim("pw"),
)


def folder(inputs: ProxyJobInputs) -> str | None:
    """Returns the mounted folder of the claim; None: it is not mounted."""
    pod = proxy_job(inputs)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    claims = [one for one in pod["volumes"] if "persistentVolumeClaim" in one]
    if not claims:
        assert not any("compile_cache_dir" in word for word in container["args"])
        return None
    [volume] = claims
    [mount] = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
    assert volume["persistentVolumeClaim"]["claimName"] == "pw-compiled-programs"
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    variables = {one["name"]: one["value"] for one in container["env"]}
    options = parse_flags(ProxyServerOptions, container["args"], variables)
    assert options.compile_cache_dir.startswith(f"{mount['mountPath']}/")
    return str(mount["subPath"])


def test_the_service_names_the_claim() -> None:
    jobset = service_jobset(SERVICE)
    service = read_service(jobset)
    assert service is not None
    assert service.programs_claim == PROXY.programs_claim
    assert read_inputs(jobset, service) == SERVICE
    with pytest.raises(InvalidRequestError, match="verify_users"):
        dataclasses.replace(SERVICE, verify_users=False)


def test_each_user_has_one_folder() -> None:
    names = ["ada", "user-ada", "a/da", "a%2Fda", "..", "system:serviceaccount:a:b"]
    folders = [
        folder(dataclasses.replace(PROXY, identity=dataclasses.replace(ADA, user=name)))
        for name in names
    ]
    assert folders[0] == "user-ada"
    assert len(set(folders)) == len(names)
    assert not any(one is None or "/" in one for one in folders)


@pytest.mark.parametrize(
    "inputs",
    [
        dataclasses.replace(PROXY, programs_claim=""),
        dataclasses.replace(PROXY, identity=None),
        dataclasses.replace(PROXY, identity=dataclasses.replace(ADA, user="x" * 251)),
        # Its files would belong to another system user.
        dataclasses.replace(PROXY, options=ProxyOptions(run_as_user=2000)),
    ],
)
def test_other_proxies_keep_none(inputs: ProxyJobInputs) -> None:
    assert folder(inputs) is None
