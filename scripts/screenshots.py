"""Writes pictures for docs/images, of `sps ui` and of a profile; `scripts/screenshots` runs it.

The service is real, and its tenants are streams to its resource manager: so they have names, teams
and a history of moves and waits within seconds. The elastic run is of examples/elastic_train.py, on
a service of its own, and loses a slice. XProf shows the profile, and listens on all addresses of
this machine meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import socket
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
#: Four steps on one device, each with an upload, a program and a fetch.
_PROFILED = """
import sys, jax, jax.numpy as jnp, numpy as np
from shared_pathways_service import isc_pathways

@jax.jit
def train_step(weights, batch):
    out = jnp.tanh(batch @ weights)
    return weights - 1e-3 * batch.T @ out, out.sum()

def step(weights):
    weights, loss = train_step(weights, jax.device_put(batch))
    return weights, float(loss)

batch = np.ones((2048, 1024), np.float32)
options = jax.profiler.ProfileOptions()
options.python_tracer_level = 0
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:1x1": 1}):
    weights, _ = step(jnp.eye(1024))
    with jax.profiler.trace(sys.argv[1], profiler_options=options):
        for number in range(4):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                weights, _ = step(weights)
    del weights
"""
_DRAWING_S = 15.0


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
    _save(page, f"web_page_{name}.png", full_page=full_page)


def _save(page: Page, name: str, *, full_page: bool) -> None:
    path = _IMAGES / name
    picture = Image.open(io.BytesIO(page.screenshot(full_page=full_page))).convert("RGB")
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(path.relative_to(ROOT), size)
    assert size < _LARGEST, "too large for the repository"


@contextlib.contextmanager
def _profile() -> Iterator[str]:
    """Serves a profile by XProf, and yields the address of its trace viewer."""
    with tempfile.TemporaryDirectory(prefix="sps-screenshots-") as traces:
        with own_service("tpuv6e:1x1=1", 0):
            subprocess.run([sys.executable, "-c", _PROFILED, traces], check=True)
        [session] = (Path(traces) / "plugins" / "profile").iterdir()
        hosts = ",".join(sorted(path.name.split(".")[0] for path in session.glob("*.xplane.pb")))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        xprof = [str(Path(sys.executable).with_name("xprof")), f"--logdir={traces}"]
        with subprocess.Popen([*xprof, f"--port={port}"], stderr=subprocess.PIPE, text=True) as own:
            try:
                assert own.stderr
                assert any(f":{port}/" in line for line in own.stderr)
                query = f"run={session.name}&tag=trace_viewer@&hosts={hosts}"
                yield f"http://127.0.0.1:{port}/data/plugin/profile/trace_viewer@?{query}"
            finally:
                own.terminate()


def _shoot_profile() -> None:
    with _profile() as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1440, "height": 860})
        page.goto(url)
        page.wait_for_timeout(_DRAWING_S * 1000)
        _save(page, "trace.png", full_page=False)


def _shoot_page() -> None:
    with (
        _elastic_run() as directory,
        _busy_service(),
        _address(directory) as url,
        chromium() as browser,
    ):
        _shoot_all(browser.new_page(viewport={"width": 1280, "height": 560}), url)


_PICTURES = {"page": _shoot_page, "profile": _shoot_profile}


def main() -> None:
    """Writes the pictures."""
    parser = argparse.ArgumentParser(description="Writes pictures into docs/images.")
    parser.add_argument("names", nargs="*", choices=_PICTURES, help="by default all")
    names = parser.parse_args().names or [*_PICTURES]
    _IMAGES.mkdir(exist_ok=True)
    for name in names:
        _PICTURES[name]()


if __name__ == "__main__":
    main()
