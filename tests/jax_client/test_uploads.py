"""Uploads to a proxy on this machine, one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.deadlines import deadline
from shared_pathways_service.jax_client.target import UPLOADS_VARIABLE, ProxyTarget
from tests.jax_client.conftest import PRELUDE, run_program, run_proxy

UPLOADS = """
import signal
from harness.signals import suspend

attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=deadline(60))
import jax
device, proxy = jax.devices()[0], int(sys.argv[2])
jax.device_put(np.ones(2), device).block_until_ready()
arrays, begun, sent = [], threading.Event(), threading.Event()

def upload():
    begun.set()
    for number in range(3):
        arrays.append(jax.device_put(np.full(2, number), device))
    sent.set()

# (The proxy may not have answered the upload before yet, which then counts as the first.)
try:
    suspend(proxy)
    thread = threading.Thread(target=upload)
    thread.start()
    assert begun.wait(deadline(60))
    early = sent.wait(float(sys.argv[3]))
    assert early or len(arrays) < 2, arrays
finally:
    os.kill(proxy, signal.SIGCONT)
thread.join()
assert [array.tolist() for array in arrays] == [[0, 0], [1, 1], [2, 2]]
print("early" if early else "waited")
arrays.clear()
attachment.detach()
"""


@pytest.mark.parametrize(
    ("own", "wait_s", "expected"),
    [(None, 0.5, "waited"), ("64", deadline(60.0), "early")],
    ids=["one-at-a-time", "the-users-limit"],
)
def test_an_upload_waits_for_the_one_before(
    own_directories: Path, own: str | None, wait_s: float, expected: str
) -> None:
    with run_proxy(own_directories, "p", slices=1) as proxy:
        ended = run_program(
            PRELUDE + UPLOADS,
            proxy.address,
            str(proxy.pid),
            str(wait_s),
            env={UPLOADS_VARIABLE: own},
        )
    assert ended.stdout.split() == [expected]


@pytest.mark.parametrize(
    ("is_remote", "inherited", "changes"),
    [
        (False, {}, {UPLOADS_VARIABLE: "01"}),
        (False, {UPLOADS_VARIABLE: "01"}, {UPLOADS_VARIABLE: "01"}),
        (False, {UPLOADS_VARIABLE: "8"}, {}),
        (True, {}, {UPLOADS_VARIABLE: None}),
        (True, {UPLOADS_VARIABLE: "01"}, {UPLOADS_VARIABLE: None}),
        (True, {UPLOADS_VARIABLE: "1"}, {}),
    ],
)
def test_the_limit_is_ours_or_the_users(
    is_remote: bool, inherited: dict[str, str], changes: dict[str, str | None]
) -> None:
    target = ProxyTarget(address="unix:/p", is_remote=is_remote)
    assert target.limits(inherited) == changes


@pytest.mark.parametrize(
    ("address", "inherited", "direct"),
    [
        ("127.0.0.1:1", {"http_proxy": "http://p:1"}, "127.0.0.1"),
        ("127.0.0.1:1", {"https_proxy": "p", "no_proxy": "a.test"}, "a.test,127.0.0.1"),
        ("127.0.0.1:1", {"grpc_proxy": "p", "no_grpc_proxy": "b", "no_proxy": "a"}, "b,127.0.0.1"),
        ("127.0.0.1:1", {"http_proxy": "p", "no_proxy": "a,127.0.0.1"}, None),
        # (gRPC does not know this one.)
        ("127.0.0.1:1", {"HTTPS_PROXY": "http://p:1"}, None),
        ("unix:/socket", {"http_proxy": "http://p:1"}, None),
        ("127.0.0.1:1", {}, None),
    ],
)
def test_a_web_proxy_is_not_between_jax_and_this_machine(
    address: str, inherited: dict[str, str], direct: str | None
) -> None:
    assert ProxyTarget(address=address).limits(inherited).get("no_grpc_proxy") == direct
