"""The path of a request from connect() to the resource manager: all arrives, and few name it."""

from __future__ import annotations

import dataclasses
import json
import math
import tokenize
from pathlib import Path

import shared_pathways_service
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.api.proxy_limits import ProxyLimits
from shared_pathways_service.api.requests import Requester, SessionRequest
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.flags.tenants import tenant_flags
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.protocol import resource_manager_pb2, supervisor_pb2
from shared_pathways_service.protocol.tenant_requests import message_of, write_older_fields
from shared_pathways_service.runtime.processes import Identity
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.resource_manager.wire import tenant_asked
from shared_pathways_service.servers.supervisor.proxy_requests import read_proxy_request

PACKAGE = Path(shared_pathways_service.__file__).parent
#: Where an embedded service's requests pass between connect() and the resource manager. (Commands
#: are before connect(). Clusters have their own readiness to judge, by the same request.)
ON_THE_PATH = (
    "isc_pathways.py",
    "api",
    "connection",
    "agent",
    "session",
    "homes/base.py",
    "homes/embedded",
    "runtime",
    "rmclient",
    "protocol",
    "flags",
    "servers/supervisor",
    "servers/proxy",
    "servers/xla",
    "servers/devices",
    "servers/executor",
    "servers/serving",
)
#: Modules that a new field of a tenant's request is added to.
FORMS = {
    "isc_pathways.py",
    "api/requests.py",
    "api/tenant_requests.py",
    "protocol/tenant_requests.py",
    "flags/tenants.py",
}


def modules_that_name(word: str) -> set[str]:
    """Returns the modules on the path in whose code, not only its texts, a word stands."""
    found = set()
    for place in ON_THE_PATH:
        root = PACKAGE / place
        for path in [root] if root.is_file() else root.rglob("*.py"):
            if path.stem.endswith(("_pb2", "_pb2_grpc")):
                continue
            with tokenize.open(path) as file:
                tokens = tokenize.generate_tokens(file.readline)
                if any(t.type == tokenize.NAME and t.string == word for t in tokens):
                    found.add(str(path.relative_to(PACKAGE)))
    return found


def test_a_module_that_only_hands_a_request_on_does_not_name_its_fields() -> None:
    assert modules_that_name("elastic_slices") == FORMS
    assert modules_that_name("expected_tpu_instances") == {
        "isc_pathways.py",
        "api/requests.py",
        "connection/request_attributes.py",
    }
    # (An embedded service's sockets do not break.)
    assert modules_that_name("keep_for") == {"isc_pathways.py", "api/requests.py"}
    # (More modules than these use the slices, once they have the request.)
    assert FORMS - {"isc_pathways.py"} <= modules_that_name("virtual_slices")


def test_every_field_of_a_tenant_travels_from_connect_to_the_resource_manager() -> None:
    request = SessionRequest.build(
        Requester(user="ada", host="laptop", suffix="x7k2p"),
        proxy_job_name="isc-proxy-ada",
        expected_tpu_instances={"tpuv6e:2x2": 2, "tpuv4:2x2x1": 1},
        elastic_slices=2,
        priority=-7,
        queue_timeout=math.inf,
        max_lifetime=12_345_678.25,
        link="resumable",
        keep_for="30m",
        labels={"sps.dev/team": "research"},
    )
    for field in dataclasses.fields(TenantRequest):
        assert getattr(request.tenant, field.name) != field.default

    # To the agent,
    home, owner = HomeChoice(name="embedded"), Identity(pid=1, start="x")
    start = Start(
        home=home, request=request, session="s", owner=owner, journal="/j", delete_timeout_s=1.0
    )
    told = Start.from_json(json.loads(json.dumps(start.to_json()))).request
    assert told == request
    assert (told.link, told.keep_for_s) == ("resumable", 1800.0)
    # to the supervisor,
    create = supervisor_pb2.CreateProxyRequest(tenant=message_of(told.tenant), session="s")
    write_older_fields(create)
    received = supervisor_pb2.CreateProxyRequest.FromString(create.SerializeToString())
    types = ("tpuv6e:2x2", "tpuv4:2x2x1")
    checked = read_proxy_request(received, types, ProxyLimits()).tenant
    assert checked == request.tenant
    # to the proxy,
    options = parse_flags(ProxyServerOptions, tenant_flags(checked), {})
    asked = options.tenant_request(default_name="none")
    assert asked == request.tenant
    # and to the resource manager.
    hello = resource_manager_pb2.TenantHello(tenant=message_of(asked), incarnation="i")
    write_older_fields(hello)
    arrived = tenant_asked(resource_manager_pb2.TenantHello.FromString(hello.SerializeToString()))
    assert arrived.request == request.tenant
    assert (arrived.request.name, arrived.request.virtual_slices) == (
        "isc-proxy-ada",
        asked.virtual_slices,
    )
    assert (arrived.request.elastic_slices, arrived.request.priority) == (2, -7)
    assert arrived.request.queue_timeout_s == math.inf
    assert arrived.request.max_lifetime_s == 12_345_678.25
    assert (arrived.request.user, arrived.request.team) == ("ada", "research")
    assert arrived.request.host == "laptop"
