"""Uploads to a proxy on this machine, one at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared_pathways_service.jax_client.target import UPLOADS_VARIABLE, ProxyTarget
from tests.jax_client.conftest import PRELUDE, run_program, run_proxy

UPLOADS = """
import signal

attachment = attach(ProxyTarget(address=sys.argv[1]), timeout=60)
import jax
device, proxy = jax.devices()[0], int(sys.argv[2])
jax.device_put(np.ones(2), device).block_until_ready()
arrays, sent = [], threading.Event()

def upload():
    for number in range(2):
        arrays.append(jax.device_put(np.full(2, number), device))
    sent.set()

os.kill(proxy, signal.SIGSTOP)
try:
    thread = threading.Thread(target=upload)
    thread.start()
    early = sent.wait(float(sys.argv[3]))
finally:
    os.kill(proxy, signal.SIGCONT)
thread.join()
assert [array.tolist() for array in arrays] == [[0, 0], [1, 1]]
print("early" if early else "waited")
arrays.clear()
attachment.detach()
"""


@pytest.mark.parametrize(
    ("own", "wait_s", "expected"),
    [(None, 0.5, "waited"), ("64", 60.0, "early")],
    ids=["one-at-a-time", "the-users-limit"],
)
def test_the_second_upload_waits_for_the_first(
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
    ("address", "own", "expected"),
    [
        ("unix:/p", None, "1"),
        ("127.0.0.1:80", None, None),
        ("unix:/p", "8", "8"),
        ("127.0.0.1:80", "8", None),
    ],
)
def test_uploads_through_a_link_are_not_limited(
    monkeypatch: pytest.MonkeyPatch, address: str, own: str | None, expected: str | None
) -> None:
    monkeypatch.delenv(UPLOADS_VARIABLE, raising=False)
    if own is not None:
        monkeypatch.setenv(UPLOADS_VARIABLE, own)
    assert ProxyTarget(address=address).environment.get(UPLOADS_VARIABLE) == expected
