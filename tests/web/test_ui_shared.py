"""`sps ui --identity` as a command: the page that a pod serves."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shared_pathways_service
from harness.processes import DEADLINE_S, KIND, ServerProcess
from harness.programs import sps_failing
from shared_pathways_service.manifests.page_inputs import PageInputs
from shared_pathways_service.manifests.page_parts import page_objects
from tests.web.issuer import AUDIENCE, Issuer
from tests.web.streams import rows_until

_URL = "https://tpus.example.org/"
_IAP = ("--identity=iap", f"--audience={AUDIENCE}", f"--behind={_URL}")
_HOST = {"Host": "tpus.example.org"}
_HEADER = "X-Goog-IAP-JWT-Assertion"


def asked(url: str, path: str, shown: dict[str, str]) -> Any:
    request = urllib.request.Request(f"{url}{path}", headers={**_HOST, **shown})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return answer.read()


def without_testing(directory: Path) -> Path:
    """Copies the package as the image has it, and returns where it is."""
    source = Path(shared_pathways_service.__file__).parent
    left_out = shutil.ignore_patterns("testing", "__pycache__")
    shutil.copytree(source, directory / source.name, ignore=left_out)
    return directory


@contextlib.contextmanager
def page_of_the_pod(tmp_path: Path, issuer: Issuer, manager: str) -> Iterator[str]:
    """Runs the container of the manifest, as bare as in its pod; yields its URL."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(issuer.jwks()))
    given = {"identity": "iap", "audience": AUDIENCE, "url": _URL}
    objects = page_objects(
        "pw",
        "default",
        PageInputs.check(dict[str, str | None](given)),
        image="r.io/shared-pathways-service/server:1",
        address=manager,
    )
    [container] = objects["deployments"]["spec"]["template"]["spec"]["containers"]
    _, *command = container["command"]
    # (A port, an address and keys of the test.)
    placed = {"--port": "0", "--jwks": str(keys)}
    words = [
        f"{name}={placed.get(name, value)}" if equals else name
        for name, equals, value in (word.partition("=") for word in container["args"])
    ]
    env = {one["name"]: one["value"].replace("/tmp", str(tmp_path)) for one in container["env"]}
    with subprocess.Popen(
        [sys.executable, *command, *words, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={
            **env,
            "PATH": "/usr/bin:/bin",
            "SPS_BIND_ADDRESS": "127.0.0.1",
            "PYTHONPATH": str(without_testing(tmp_path / "image")),
        },
    ) as process:
        try:
            assert process.stdout
            assert process.stderr
            # (Then the line is empty.)
            late = threading.Timer(DEADLINE_S, process.kill)
            late.start()
            try:
                line = process.stdout.readline()
            finally:
                late.cancel()
                late.join()
            assert line, process.stderr.read()
            assert json.loads(line)["outer_url"] == _URL
            yield str(json.loads(line)["url"])
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=DEADLINE_S)
            assert (process.returncode, err) == (143, "")
        finally:
            process.kill()


def test_the_container_of_the_manifest_shows_its_resource_manager(
    tmp_path: Path, own_directories: Path
) -> None:
    issuer = Issuer()
    flags = [
        "--server_port=0",
        f"--instance_type={KIND}",
        "--instance_count=2",
        f"--state_file={own_directories / 'state'}",
        "--first_start",
    ]
    with ServerProcess("shared_pathways_service.servers.resource_manager", flags) as manager:
        assert manager.ready is not None, "\n".join(manager.lines)
        address = f"127.0.0.1:{manager.ready['port']}"
        with page_of_the_pod(tmp_path, issuer, address) as url:
            shown = {_HEADER: issuer.signed()}
            with pytest.raises(urllib.error.HTTPError, match="401"):
                asked(url, "", {})
            assert asked(url, "healthz", {}) == b""
            assert b"<main" in asked(url, "", shown)
            rows = rows_until(
                f"{url}api/stream",
                {**_HOST, **shown},
                lambda found: found.get("service", {}).get("service", {}).get("address"),
            )
            assert rows["service"]["service"]["address"] == address
            assert not rows["service"]["service"]["error"]


def test_without_pyjwt_the_command_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "jwt.py").write_text("raise ModuleNotFoundError('no jwt', name='jwt')")
    done = subprocess.run(
        [sys.executable, "-m", "shared_pathways_service.cli", "ui", *_IAP],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "shared-pathways-service[ui]" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--identity=header", f"--behind={_URL}"), "--identity='header' is not valid"),
        ((*_IAP, "--allow-actions"), "--allow-actions"),
        ((*_IAP, "--socket=/tmp/page"), "--behind"),
        ((*_IAP, "--run=/tmp/run"), "--run"),
        (_IAP[:2], "--behind"),
        ((*_IAP[:2], "--behind=https://a.example/{port}/"), "--behind"),
        ((_IAP[0], _IAP[2]), "--audience"),
        ((*_IAP, "--manager=somewhere"), "--manager"),
        ((*_IAP, "--manager=a:1", "--context=b"), "--manager"),
        (("--audience=a",), "to be given only with --identity"),
        (("--manager=a:1",), "to be given only with --identity"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_served(
    words: tuple[str, ...], said: str
) -> None:
    code, err = sps_failing("ui", "--no-browser", *words)
    assert code == 2
    assert said in err
