"""Exec plug-ins of a kubeconfig: their calls, failures and ends."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.exec_plugin import Plugin
from tests.kube.control_plane import ControlPlane
from tests.kube.kubeconfigs import NOBODY, plugin_that_says, runs, who


def test_plugin_runs_once_and_again_when_its_token_is_refused(
    control_plane: ControlPlane, own_directories: Path, use: Callable[[Path], None]
) -> None:
    user = plugin_that_says(own_directories, {"token": "expired"}, provideClusterInfo=True)
    use(control_plane.kubeconfig(user))

    async def work() -> None:
        async with KubeApi(await resolve(NOBODY)) as api:
            with pytest.raises(AccessDenied) as caught:
                await api.get(paths.collection("nodes"))
            assert caught.value.verb == "connect"
            assert runs(own_directories) == 2
            answer = json.loads((own_directories / "answer.json").read_text())
            answer["status"]["token"] = control_plane.admin
            (own_directories / "answer.json").write_text(json.dumps(answer))
            await asyncio.gather(*(api.get(paths.collection("nodes")) for _ in range(5)))
            assert runs(own_directories) == 3

    asyncio.run(work())
    info = json.loads((own_directories / "info").read_text())
    assert info["spec"]["interactive"] is False
    assert info["spec"]["cluster"]["server"] == control_plane.url


def test_an_invalid_certificate_of_a_plugin(
    control_plane: ControlPlane, own_directories: Path, use: Callable[[Path], None]
) -> None:
    given = {"clientCertificateData": "nonsense", "clientKeyData": "nonsense"}
    use(control_plane.kubeconfig(plugin_that_says(own_directories, given)))
    with pytest.raises(AccessDenied, match="no certificate"):
        who(asyncio.run(resolve(NOBODY)))


VERSION = "client.authentication.k8s.io/v1"
#: What each plug-in of that version has.
V1 = {"apiVersion": VERSION, "interactiveMode": "Never"}
#: What gcloud's plug-in writes where nobody is logged in (google-cloud-cli 540, its prefix cut).
NOT_LOGGED_IN = """\
cred.go:145] print credential failed with error: Failed to retrieve access token:: failure while \
executing gcloud, with args [config config-helper --format=json]: exit status 1 (err: ERROR: \
(gcloud.config.config-helper) You do not currently have an active account selected.
Please run:

  $ gcloud auth login

to obtain new credentials.

If you have already logged in with a different account, run:

  $ gcloud config set account ACCOUNT

to select an already authenticated account to use.
)"""


def plugin(command: str, where: Path = Path("/"), **more: Any) -> Plugin:
    hint = {"installHint": "install it from somewhere"}
    spec = {**V1, "command": command, **hint, **more}
    return Plugin(exec=spec, cluster={}, where=where)


def script(text: str) -> Plugin:
    return plugin(sys.executable, args=["-c", text])


def program(path: Path, token: str) -> None:
    """Writes a plug-in that gives a token, after what the variable OF says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    status = f'\'{{"token": "{token}\'"$OF"\'"}}\''
    answer = f'\'{{"apiVersion": "{VERSION}", "kind": "ExecCredential", "status": \'{status}\'}}\''
    path.write_text(f"#!/bin/sh\necho {answer}\n")
    path.chmod(0o700)


def token_of(one: Plugin) -> str:
    return asyncio.run(one.run()).token


@pytest.mark.parametrize("command", ["./plugin", "programs/../plugin", "../kube/plugin"])
def test_a_relative_command_is_the_kubeconfigs(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    here, kubeconfigs = own_directories / "here", own_directories / "kube"
    program(kubeconfigs / "plugin", "right")
    program(here / "plugin", "of the current directory")
    program(own_directories / "here" / "kube" / "plugin", "of the current directory")
    (here / "programs").mkdir()
    monkeypatch.chdir(here)
    assert token_of(plugin(command, kubeconfigs)) == "right"


@pytest.mark.parametrize("path", ["", ".", "bin", ":{bin}", ".:{bin}", "here:{bin}", "{bin}"])
def test_a_bare_name_is_searched_in_path_and_not_in_the_current_directory(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    here, known = own_directories / "here", own_directories / "known"
    for directory in (here, here / "bin", here / "here", own_directories / "kube"):
        program(directory / "plugin", "of the current directory")
    program(known / "plugin", "right")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", path.format(bin=known))
    # (Programs of the plug-in's own PATH are for the plug-in.)
    variables = [{"name": "PATH", "value": str(here)}, {"name": "OF", "value": ""}]
    one = plugin("plugin", own_directories / "kube", env=variables)
    if "{bin}" in path:
        assert token_of(one) == "right"
        return
    with pytest.raises(AccessDenied, match="plugin is in no directory of PATH") as caught:
        asyncio.run(one.run())
    assert caught.value.hint == "install it from somewhere"


def test_variables_of_a_plugin(own_directories: Path) -> None:
    program(own_directories / "plugin", "right")
    empty = [{"name": "OF", "value": None}, {"name": "OTHER"}]
    assert token_of(plugin("./plugin", own_directories, env=empty)) == "right"
    twice = [{"name": "OF", "value": "-one"}, {"name": "OF", "value": "-two"}]
    assert token_of(plugin("./plugin", own_directories, env=twice)) == "right-two"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("hello", "no ExecCredential"),
        ("", "no ExecCredential: it has written nothing to standard output"),
        ('WARNING: old\n{"status": {"token": "x"}}', "its standard output is not only one"),
        ("{}", "no ExecCredential"),
        ('{"status": null}', "no ExecCredential"),
        ('{"status": {}}', "neither token"),
        ('{"status": {"token": "x", "clientKeyData": "x"}}', "only one of"),
        (
            '{"status": {"token": "x", "expirationTimestamp": "2030-01-01T00:00:00"}}',
            "without a time zone",
        ),
        ('{"status": {"token": "x"}}', f"not with ExecCredential of {VERSION}"),
    ],
)
def test_an_answer_that_is_no_credential(answer: str, said: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        asyncio.run(script(f"print({answer!r})").run())
    assert said in caught.value.message
    assert "install" not in caught.value.hint


def test_an_answer_in_yaml() -> None:
    """As kubectl takes it (meta-pytorch/monarch#4916)."""
    answer = f"""
apiVersion: {VERSION}
kind: ExecCredential
status:
  expirationTimestamp: 2030-01-01T00:00:00Z
  token: secret
"""
    given = asyncio.run(script(f"print({answer!r})").run())
    assert (given.token, given.expires_at) == ("secret", 1893456000.0)


def test_an_answer_of_another_version(own_directories: Path) -> None:
    program(own_directories / "plugin", "x")
    older = plugin("./plugin", own_directories, apiVersion="client.authentication.k8s.io/v1beta1")
    with pytest.raises(AccessDenied, match=f"ExecCredential of {VERSION}, not with") as caught:
        asyncio.run(older.run())
    assert caught.value.hint == "update ./plugin, or its user in the kubeconfig"


@pytest.mark.parametrize("said", ["please log in", NOT_LOGGED_IN])
def test_the_messages_of_a_failed_plugin_are_whole(said: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        asyncio.run(script(f"import sys; sys.exit({said!r})").run())
    assert caught.value.message.endswith(f"ended with 1:\n{said}")
    assert caught.value.hint == ""


def test_the_middle_of_long_messages_is_left_out() -> None:
    text = "import sys; sys.exit('\\n'.join(map(str, range(1000))))"
    with pytest.raises(AccessDenied) as caught:
        asyncio.run(script(text).run())
    shown = caught.value.message.splitlines()[1:]
    assert shown[:30] == [str(number) for number in range(30)]
    assert shown[30:] == ["[960 lines left out]", *(str(number) for number in range(990, 1000))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise SystemExit(3)", "ended with 3, without a message"),
        ("import os; os.kill(os.getpid(), 9)", "was ended by signal 9, without a message"),
    ],
)
def test_a_plugin_that_fails_without_a_message(text: str, said: str) -> None:
    with pytest.raises(AccessDenied, match=said) as caught:
        asyncio.run(script(text).run())
    assert caught.value.hint == f"run {sys.executable} in a terminal to see why"


def test_a_plugin_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_PATIENCE", "0.01")
    with pytest.raises(AccessDenied, match="did not end within") as caught:
        asyncio.run(script("import time; time.sleep(600)").run())
    assert "it may wait for a login" in caught.value.hint


def test_a_missing_plugin(own_directories: Path) -> None:
    own_directories.mkdir(exist_ok=True)
    with pytest.raises(AccessDenied, match="no-such-plugin is in no directory of PATH") as caught:
        asyncio.run(plugin("no-such-plugin").run())
    assert caught.value.hint == "install it from somewhere"
    with pytest.raises(AccessDenied, match=f"there is no file {own_directories}/missing") as caught:
        asyncio.run(plugin("./missing", own_directories, installHint="").run())
    assert caught.value.hint == "install ./missing, or correct exec.command"


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("#!/no/such/interpreter\n", 0o700, "names an interpreter that is missing"),
        ("#!/bin/sh\n", 0o600, "cannot be started: .*Permission denied"),
        ("", 0o700, "cannot be started: .*Exec format error"),
    ],
)
def test_a_plugin_that_cannot_be_started(
    own_directories: Path, text: str, mode: int, said: str
) -> None:
    own_directories.mkdir(exist_ok=True)
    (own_directories / "plugin").write_text(text)
    (own_directories / "plugin").chmod(mode)
    with pytest.raises(AccessDenied, match=said) as caught:
        asyncio.run(plugin("./plugin", own_directories).run())
    assert caught.value.hint == ""


def test_a_plugin_ends_with_its_waiter(own_directories: Path) -> None:
    own_directories.mkdir(exist_ok=True)
    fifo = own_directories / "started"
    os.mkfifo(fifo)
    text = f"import time; open({str(fifo)!r}, 'w').close(); time.sleep(600)"

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(script(text).run())
            await asyncio.to_thread(fifo.read_bytes)
            running.cancel()
        assert running.cancelled()

    asyncio.run(work())  # and `leaves_nothing_behind` looks for the process


@pytest.mark.parametrize("mode", ["Always", "never", None])
def test_the_hint_fits_the_mode(mode: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Plugin(exec={**V1, "command": "x", "interactiveMode": mode}, cluster={}, where=Path("/"))
    assert ("log in with it" in caught.value.hint) == (mode == "Always")


@pytest.mark.parametrize(
    ("exec_", "field"),
    [
        ({"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}, "apiVersion"),
        ({"apiVersion": VERSION}, "command"),
        ({"command": "x", "apiVersion": VERSION}, "interactiveMode"),
        ({"command": "x", **V1, "interactiveMode": "Always"}, "interactiveMode"),
        ({"command": "x", **V1, "interactiveMode": "never"}, "interactiveMode"),
        ({"command": "x", **V1, "args": "login"}, "args"),
        ({"command": "x", **V1, "args": [1]}, "args"),
        ({"command": "x", **V1, "env": [{"value": "x"}]}, "env"),
        ({"command": "x", **V1, "env": [{"name": "A", "value": 1}]}, "env"),
    ],
)
def test_an_unusable_plugin(exec_: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Plugin(exec=exec_, cluster={}, where=Path("/"))
    assert field in caught.value.field
