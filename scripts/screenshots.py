"""Writes a picture of each page of `sps ui` into docs/images; `scripts/screenshots` runs it.

The service is real, and its tenants are streams to its resource manager: so they have names, teams
and a history of moves and waits within seconds. The elastic run is of examples/elastic_train.py, on
a service of its own, and loses a slice.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from PIL import Image
from playwright.sync_api import Page, expect

from harness.chromium import chromium
from harness.own_service import ROOT, own_service
from harness.processes import Stream, tenant_hello
from shared_pathways_service.homes.embedded.discovery import find
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.runtime.settings import Settings

_IMAGES = ROOT / "docs" / "images"
_LINE, _LARGE, _SMALL = "tpuv6e:2x2", "tpuv5e:4x4", "tpuv5e:1x1"
_SPS = [sys.executable, "-m", "shared_pathways_service.cli"]
_CONNECTION = "fay-train"
_TRAIN = [sys.executable, str(ROOT / "examples" / "elastic_train.py")]
_RUN = "runs/digits"
_DISRUPTED = ["--steps=400", "--snapshot-period=50", "--kill-at=120", "--down-for=5"]
_PAGES = {
    "overview": "overview",
    "tenants": "tenants",
    "slices": "slices",
    "usage": "usage",
    "connection": f"connection/{_CONNECTION}",
    "training": "run",
}
_HOLDING_S, _SETTLING_S, _DEADLINE_S = 20.0, 3.0, 60.0
_COLOURS, _LARGEST = 128, 150_000
_PROGRAM = """
import threading, jax, jax.numpy as jnp
x = jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((500, 500))))
print("ready", flush=True)
threading.Event().wait()
"""


class _Tenants:
    """Tenants of the embedded service, which hold slices and compute nothing."""

    def __init__(self, stub: Any, token: str | None, stack: contextlib.ExitStack) -> None:
        self._stub, self._token, self._stack = stub, token, stack
        self._streams: dict[str, Stream] = {}

    def start(self, name: str, user: str, team: str, *types: str, **fields: Any) -> None:
        stream = Stream(self._stub.TenantSession, token=self._token)
        self._streams[name] = self._stack.enter_context(stream)
        hello = tenant_hello(
            name, user=user, team=team, virtual_slices=types, queue_timeout_s=3600, **fields
        )
        stream.send(pb.TenantMessage(hello=hello))

    def end(self, name: str) -> None:
        self._streams[name].send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))


def _link() -> tuple[str, str | None]:
    """Returns the address and the token of the embedded service's resource manager."""
    import asyncio  # noqa: PLC0415

    async def read() -> tuple[str, str | None]:
        link = await find(Settings.load())
        assert link is not None
        await link.close()
        return link.manager_address, link.token

    return asyncio.run(read())


def _sps(*words: str) -> None:
    subprocess.run([*_SPS, *words], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


@contextlib.contextmanager
def _busy_service() -> Iterator[None]:
    with own_service(f"{_LINE}=6,{_LARGE}=2,{_SMALL}=1", 1), contextlib.ExitStack() as stack:
        address, token = _link()
        channel = stack.enter_context(grpc.insecure_channel(address))
        tenants = _Tenants(pb_grpc.ResourceManagerStub(channel), token, stack)
        tenants.start("ada-sweep-1", "ada", "vision", _LINE, _LINE)
        tenants.start("bob-eval", "bob", "speech", _LARGE)
        tenants.start("eve-debug", "eve", "vision", _LINE)
        time.sleep(_HOLDING_S)
        tenants.end("eve-debug")
        tenants.start("carol-pretrain", "carol", "language", _LINE, _LINE, _LINE)
        time.sleep(_HOLDING_S / 2)
        tenants.start("ada-sweep-2", "ada", "vision", _LINE, _LINE)
        time.sleep(_HOLDING_S / 2)
        _sps("drain", "slice-1")
        program = ["--", sys.executable, "-c", _PROGRAM]
        run = ["run", f"--slices={_SMALL}=1", f"--proxy-job-name={_CONNECTION}", *program]
        with subprocess.Popen(
            [*_SPS, *run], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as process:
            try:
                assert process.stdout
                assert process.stdout.readline() == "ready\n"
                _sps("reserve", f"{_SMALL}=1", "--for-team=vision", "--from=in 1h", "--until=in 3h")
                tenants.start("dan-finetune", "dan", "language", _LINE, _LARGE, _LARGE, priority=1)
                yield
            finally:
                process.terminate()


@contextlib.contextmanager
def _elastic_run() -> Iterator[Path]:
    """Trains, and yields the directory in which `_RUN` is."""
    with tempfile.TemporaryDirectory(prefix="sps-screenshots-") as scratch:
        with own_service(f"{_LINE}=3", 0):
            subprocess.run([*_TRAIN, f"--directory={_RUN}", *_DISRUPTED], check=True, cwd=scratch)
        yield Path(scratch)


@contextlib.contextmanager
def _address(directory: Path) -> Iterator[str]:
    command = [*_SPS, "ui", "--no-browser", "--json", f"--run={_RUN}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=directory) as process:
        assert process.stdout
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def _shoot_all(page: Page, url: str) -> None:
    page.goto(url)
    for name, address in _PAGES.items():
        _go(page, address)
        _shoot(page, name)
    # With a preemption, after its period of grace.
    _go(page, "tenants")
    row = page.get_by_role("table", name="All tenants").get_by_role("row", name="dan-finetune")
    expect(row).to_contain_text("running", timeout=_DEADLINE_S * 1000)
    _go(page, "timeline")
    page.get_by_role("combobox", name="Range").select_option("120")
    page.wait_for_timeout(_SETTLING_S * 1000)
    _shoot(page, "timeline")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 700})
    _go(page, "slices")
    _shoot(page, "phone", full_page=False)


def _go(page: Page, address: str) -> None:
    page.evaluate(f"location.hash = '#{address}'")
    page.wait_for_timeout(_SETTLING_S * 1000)


def _shoot(page: Page, name: str, *, full_page: bool = True) -> None:
    path = _IMAGES / f"web_page_{name}.png"
    picture = Image.open(io.BytesIO(page.screenshot(full_page=full_page))).convert("RGB")
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(path.relative_to(ROOT), size)
    assert size < _LARGEST, "too large for the repository"


def main() -> None:
    """Writes the pictures."""
    _IMAGES.mkdir(exist_ok=True)
    with (
        _elastic_run() as directory,
        _busy_service(),
        _address(directory) as url,
        chromium() as browser,
    ):
        _shoot_all(browser.new_page(viewport={"width": 1280, "height": 560}), url)


if __name__ == "__main__":
    main()
