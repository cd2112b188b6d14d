"""The manifests in yamls/, from the code that makes them.

``python -m tests.manifests.documented`` writes them anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.session_requests import job_inputs
from shared_pathways_service.api.requests import DEFAULT_PROXY_IMAGE
from shared_pathways_service.cli.display.manifest_text import yaml_text
from shared_pathways_service.manifests.hotswap_jobset import HIGH, LOW, hotswap_jobset
from shared_pathways_service.manifests.priority_classes import priority_classes
from shared_pathways_service.manifests.proxy_job import proxy_job
from shared_pathways_service.manifests.rbac import operator_rbac, tenant_rbac, verification_objects
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_address, service_jobset
from tests.manifests.page_proxies import IAP_IN_FRONT, OAUTH2_PROXY

YAMLS = Path(__file__).parents[2] / "yamls"

SERVICE = ServiceInputs(
    name="pathways-cluster", instances={"tpuv6e:2x2": 2}, gcs_bucket="gs://my-bucket"
)
PROXY = job_inputs(
    name="isc-proxy-example",
    namespace="default",
    session="00000000-0000-0000-0000-000000000000",
    service_name=SERVICE.name,
    service_address=service_address(SERVICE.name),
    virtual_slices=("tpuv6e:2x2", "tpuv6e:2x2"),
    image=DEFAULT_PROXY_IMAGE,
    gcs_bucket="gs://my-bucket",
    user="ada",
    host="laptop",
    client_version="VERSION",
)

ELASTIC: dict[str, Any] = {
    "apiVersion": "pathways-job.pathways.domain/v1",
    "kind": "PathwaysJob",
    "metadata": {"name": "elastic-training"},
    "spec": {
        "maxRestarts": 0,
        "pathwaysDir": "gs://my-bucket/scratch",
        "workers": [
            {
                "type": "ct5lp-hightpu-4t",
                "topology": "4x8",
                "numSlices": 3,
                "maxSliceRestarts": 2,
            }
        ],
        "controller": {
            "deploymentMode": "default",
            "elasticSlices": 1,
            "template": {
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "my-registry/elastic-training:latest",
                            "command": ["python", "examples/elastic_train.py"],
                        }
                    ]
                }
            },
        },
    },
}

_SERVICE_SAYS = """\
# A Shared Pathways Service of two v6e 2x2 slices: the head with the resource manager only, and one
# worker pod a host of each slice. Tenants bring their own proxies (isc-proxy.yaml).
# Replace gs://my-bucket. Source of images, flags and ports: the public documents of Pathways on
# Cloud. This is what service_jobset() makes of the inputs in tests/manifests/documented.py.
"""
_PROXY_SAYS = """\
# A tenant's proxy that asks a Shared Pathways Service for two v6e 2x2 slices. connect() creates one
# like it for each connection and moves its deadline on; by hand, raise activeDeadlineSeconds.
# Replace gs://my-bucket, and the service's address where it has another name.
# This is what proxy_job() makes of the inputs in tests/manifests/documented.py.
"""
_ELASTIC_SAYS = """\
# Elastic training on three v5e 4x8 slices, of which one may be missing at a time: each host of a
# slice may fail twice. examples/disrupt.sh starts it and takes a worker away from it.
# With PathwaysJob's controller in the cluster: kubectl apply -f yamls/elastic-training.yaml
# Without: sps render -f yamls/elastic-training.yaml | kubectl create -f -
# Replace gs://my-bucket, and the image by one of yours that has this project and examples/.
"""


_TENANT_SAYS = """\
# What a tenant of a service in namespace default may do: connect(), and the commands of `sps` that
# only look. It may end others' proxies of the namespace too: Kubernetes has no rules by owner.
# This is what `sps render tenant-rbac` prints; --user, --group, --service-account say who.
"""
_OPERATOR_SAYS = """\
# What who deploys, upgrades and takes away services in namespace default may do beside a tenant:
# their JobSets, pods, volumes and Leases; and of the cluster, to drain nodes and to make
# PriorityClasses.
# This is what `sps render operator-rbac` prints; --user, --group, --service-account say who.
"""
_VERIFICATION_SAYS = """\
# What `sps deploy --verify-users` needs, for services in namespace default: policies by which the
# API server vouches for the users of proxies, and roles for the resource managers. One more policy
# keeps compiled programs of a user from others (`sps deploy --compiled-programs`).
# This is what `sps render user-verification` prints; docs/operations.md explains it.
"""
_PRIORITIES_SAYS = """\
# Two PriorityClasses: pods of the higher one may take the nodes of the lower one's.
# This is what `sps render priority-classes` prints.
"""
_HIGH_SAYS = """\
# The one of high priority of two JobSets that hotswap: over two v6e 4x4 node pools. When it loses
# one it takes a free one, or that of low-jax-trillium. It needs ../priority-classes.yaml.
# `sps render hotswap` prints all of it, `sps hotswap` shows it; docs/operations.md explains it.
"""
_LOW_SAYS = """\
# The one of low priority of two JobSets that hotswap: over one v6e 4x4 node pool. When
# high-jax-trillium takes that, it waits until a pool is back. It needs ../priority-classes.yaml.
"""
_IAP_SAYS = """\
# Google's Identity-Aware Proxy in front of the page of the service pathways in namespace team-a, by
# GKE's Gateway. Replace tpus.example.org, CLIENT_ID, and the two Secrets: tpus-tls with the
# certificate, tpus-oauth-client with the OAuth client's secret as `key`. docs/web_page.md has the
# commands around it.
"""
_OAUTH2_PROXY_SAYS = """\
# oauth2-proxy in front of the page of the service pathways in namespace team-a. Replace
# tpus.example.org, login.example.org, the email domain, and the two Secrets: tpus-tls with the
# certificate, oauth2-proxy with client-id, client-secret and cookie-secret. docs/web_page.md has
# the command beside it.
"""


def documented() -> dict[str, str]:
    """Returns the text of each file."""
    return {
        "pathways-service.yaml": _SERVICE_SAYS + yaml_text(service_jobset(SERVICE)),
        "isc-proxy.yaml": _PROXY_SAYS + yaml_text(proxy_job(PROXY)),
        "elastic-training.yaml": _ELASTIC_SAYS + yaml_text(ELASTIC),
        "tenant-rbac.yaml": _TENANT_SAYS + yaml_text(*tenant_rbac("default")),
        "operator-rbac.yaml": _OPERATOR_SAYS + yaml_text(*operator_rbac("default")),
        "user-verification.yaml": _VERIFICATION_SAYS + yaml_text(*verification_objects("default")),
        "priority-classes.yaml": _PRIORITIES_SAYS + yaml_text(*priority_classes()),
        "page-iap.yaml": _IAP_SAYS + yaml_text(*IAP_IN_FRONT),
        "page-oauth2-proxy.yaml": _OAUTH2_PROXY_SAYS + yaml_text(*OAUTH2_PROXY),
        "hotswap/high-jax-trillium.yaml": _HIGH_SAYS + yaml_text(hotswap_jobset(HIGH)),
        "hotswap/low-jax-trillium.yaml": _LOW_SAYS + yaml_text(hotswap_jobset(LOW)),
    }


if __name__ == "__main__":
    for name, text in documented().items():
        (YAMLS / name).parent.mkdir(exist_ok=True)
        (YAMLS / name).write_text(text)
