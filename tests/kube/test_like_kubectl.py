"""Kubeconfigs, variables and proxies: what reaches the server is what kubectl sends.

Each case changes some fields of a kubeconfig that works. If kubectl sends its request, ours must
be the same: by the same proxies, with the same name in TLS, the same certificate and headers, to
the same path. If kubectl refuses the kubeconfig, so must we, but for `lenient` cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from harness.deadlines import deadline
from harness.layers.needed_programs import needed_program
from harness.layers.thorough import thorough
from shared_pathways_service import cli
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.kubeconfig import (
    access_of_context,
    kubeconfig_paths,
    read_kubeconfig,
)
from tests.kube.background import background
from tests.kube.kubectl_world import SECOND, VALUES, Case, Outcome, World
from tests.kube.recording_server import ANSWER


def lenient(case: Case) -> bool:
    """Whether kubectl may refuse what we take."""
    twice = any(
        case[field] and case[f"{field}-data"]
        for field in ("certificate-authority", "client-certificate", "client-key")
    )
    others = ("token", "tokenFile", "username", "client-certificate", "client-certificate-data")
    has_others = any(case[field] for field in others) or bool(case["login"])
    # kubectl asks for a user and a password, if there is a terminal.
    plugin = case["exec"] or case["auth-provider"]
    is_anonymous = not has_others and not plugin
    # (A plug-in or provider that is not needed is not looked at.)
    return twice or is_anonymous or (has_others and bool(plugin)) or takes_the_second(case)


def takes_the_second(case: Case) -> bool:
    """Whether the second context counts; kubectl checks the others too."""
    return SECOND in (case["--context"], None if case["--context"] else case["current-context"])


def lacks_user(case: Case) -> bool:
    """Whether the context names a user that no file has: kubectl minds that with https only."""
    return bool(case["--context"] == "without a user" and case["scheme"].lower() == "http")


def by_kubectl(
    kubectl: Path, world: World, case: Case, stdin: int = subprocess.DEVNULL
) -> Outcome | str:
    """Returns what kubectl sends, or why it refuses or gets no answer."""
    world.take(case["scheme"])  # what a test that failed has left
    variables = world.use(case)
    options = [*context_of(case), "--request-timeout=30s", f"--cache-dir={world.root}/cache"]
    ended = run([str(kubectl), "version", *options], world, variables, stdin)
    outcome = world.take(case["scheme"])
    # (Its status also says that it cannot compare the versions, if it was built without its own.)
    got_answer = ANSWER["gitVersion"] in ended.stdout.decode()
    return outcome if got_answer else ended.stderr.decode()


def context_of(case: Case) -> list[str]:
    chosen = case["--context"]
    return [] if chosen is None else [f"--context={chosen.format(context=case['names'])}"]


def run(
    command: list[str],
    world: World,
    variables: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
) -> subprocess.CompletedProcess[bytes]:
    """Runs a program in the directory that has no files of a kubeconfig."""
    return subprocess.run(
        command,
        cwd=world.root / "here",
        env={"HOME": str(world.root / "home"), **variables},
        stdin=stdin,
        capture_output=True,
        timeout=deadline(60.0),
        check=False,
    )


def by_us(world: World, case: Case) -> Outcome | str:
    variables = world.use(case)

    async def send() -> None:
        chosen = (case["--context"] or "").format(context=case["names"])
        access = access_of_context(read_kubeconfig(kubeconfig_paths()), chosen)
        # (A stream is not tried again.)
        async with (
            asyncio.timeout(deadline(30.0)),
            KubeApi(access) as api,
            api.stream("/version") as chunks,
        ):
            assert [chunk async for chunk in chunks]

    with surroundings(world, variables):
        try:
            asyncio.run(send())
        except SharedPathwaysError as error:
            world.take(case["scheme"])
            return str(error)
        return world.take(case["scheme"])


@contextlib.contextmanager
def surroundings(world: World, variables: Mapping[str, str]) -> Iterator[None]:
    """Gives this process what `run` gives a program."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "REQUEST_METHOD"):
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.chdir(world.root / "here")
        yield


@pytest.fixture(scope="module")
def kubectl() -> Path:
    return needed_program("kubectl", "install it (kubernetes.io/docs/tasks/tools)")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with background() as servers:
        yield World(tmp_path_factory.mktemp("kubectl"), servers)


DEFAULTS = {field: values[0] for field, values in VALUES.items()}
#: Ways to log in, and ways through the network, that work.
LOGINS: dict[str, dict[str, Any]] = {
    "token": {},
    "token file": {"token": None, "tokenFile": "token"},
    "password": {"token": None, "username": "ada", "password": "pä:ss"},
    "certificate": {"token": None, "client-certificate": "alice.crt", "client-key": "alice.key"},
    "certificate data": {
        "token": None,
        "client-certificate-data": "{alice_certificate}",
        "client-key-data": "{alice_key}",
    },
    "plug-in": {"token": None, "exec": VALUES["exec"][1]},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "direct": {},
    "proxy": {"host": "api.corp.test", "proxy-url": "http://127.0.0.1:{http}"},
    "variable": {"host": "0.0.0.0", "HTTPS_PROXY": "http://127.0.0.1:{http}"},
    "SOCKS": {"host": "api.corp.test", "HTTPS_PROXY": "socks5://127.0.0.1:{socks}"},
}


#: The cases, that work, in which each value of a field is tried; by default those of `DEFAULTS`.
_OF_A_CERTIFICATE = [LOGINS["password"], LOGINS["certificate"]]
_OF_CERTIFICATE_DATA = [LOGINS["certificate data"]]
_OF_A_PLUGIN = [LOGINS["token"], LOGINS["plug-in"]]
_OF_A_PROXY = [NETWORKS["variable"], NETWORKS["SOCKS"]]
_OF_IMPERSONATION: list[dict[str, Any]] = [{}, {"as": "bob"}]
AMONG: dict[str, list[dict[str, Any]]] = {
    **dict.fromkeys(
        ("username", "password", "client-certificate", "client-key"), _OF_A_CERTIFICATE
    ),
    **dict.fromkeys(("client-certificate-data", "client-key-data"), _OF_CERTIFICATE_DATA),
    **dict.fromkeys(("exec", "tokenFile"), _OF_A_PLUGIN),
    **dict.fromkeys(("as-uid", "as-groups", "as-user-extra"), _OF_IMPERSONATION),
    **dict.fromkeys(("NO_PROXY", "REQUEST_METHOD", "lower"), _OF_A_PROXY),
    "auth-provider": [{}, {"token": None}, LOGINS["plug-in"]],
    "extensions": [{"token": None, "exec": {**VALUES["exec"][1], "provideClusterInfo": True}}],
}


def each_value(ways: slice = slice(None)) -> Iterator[dict[str, Any]]:
    """Yields each value of each field, with each way to log in that it is about, or some."""
    yield from LOGINS.values()
    yield from NETWORKS.values()
    for field, values in VALUES.items():
        for value in values[1:]:
            for among in AMONG.get(field, [{}])[ways]:
                yield {**among, field: value}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Draws a case that works, with some fields changed."""
    fields = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4, unique=True))
    drawn: dict[str, Any] = {
        **draw(st.sampled_from(list(LOGINS.values()))),
        **draw(st.sampled_from(list(NETWORKS.values()))),
        **{field: draw(st.sampled_from(VALUES[field])) for field in fields},
    }
    if drawn.get("exec"):
        # (kubectl asks a plug-in for a certificate even if the server's URL has a login.)
        drawn.pop("login", None)
    return drawn


@pytest.mark.parametrize("context", [None, *VALUES["--context"][1:4]])
@pytest.mark.parametrize("namespace", VALUES["namespace"])
@pytest.mark.parametrize("files", ["one", "two with all names twice"])
def test_the_namespace_of_a_context(
    kubectl: Path, world: World, context: str | None, namespace: str | None, files: str
) -> None:
    case = {**DEFAULTS, "--context": context, "namespace": namespace, "files": files}
    variables = world.use(case)
    view = ["config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.namespace}"]
    ended = run([str(kubectl), *view, *context_of(case)], world, variables)
    paths = [Path(path) for path in variables["KUBECONFIG"].split(os.pathsep)]
    chosen = (context or "").format(context=case["names"])
    if ended.returncode:
        with pytest.raises(InvalidRequestError, match=chosen) as caught:
            access_of_context(read_kubeconfig(paths), chosen)
        assert SECOND in caught.value.message  # (one of those that there are)
        return
    assert access_of_context(read_kubeconfig(paths), chosen).namespace == ended.stdout.decode()


#: The namespace in which `sps doctor` looks for a service.
NAMESPACE = "of-the-service"
#: Cases of `sps doctor` as a program, which takes seconds.
DOCTOR = [
    {},
    LOGINS["certificate"],
    LOGINS["plug-in"],
    {**LOGINS["password"], **NETWORKS["SOCKS"]},
    {"--context": SECOND, "files": "two with all names twice"},
    {"--context": "missing"},
    {"token": None, "auth-provider": {"name": "gcp"}},
    {"proxy-url": "http://127.0.0.1:{login}", "host": "api.corp.test"},
]


#: Its cases in this process, which are cheaper.
DOCTOR_IN_PROCESS = list(each_value(slice(-1, None)))


@pytest.mark.parametrize("changed", [*DOCTOR[:2], *thorough(*DOCTOR[2:])], ids=str)
def test_the_program_doctor(kubectl: Path, world: World, changed: dict[str, Any]) -> None:
    case = {**DEFAULTS, **changed}
    expected = by_kubectl(kubectl, world, case)
    variables = world.use(case)
    command = [sys.executable, "-m", "shared_pathways_service.cli", *words_of_doctor(case)]
    ended = run(command, world, variables)
    judge_doctor(case, expected, ended.returncode, ended.stdout.decode(), world)


def words_of_doctor(case: Case, *more: str) -> list[str]:
    """Returns the arguments of `sps`; without a context, it would check the embedded service."""
    context = context_of({**case, "--context": case["--context"] or case["current-context"]})
    return ["doctor", "--json", f"--namespace={NAMESPACE}", *context, *more]


def judge_doctor(
    case: Case, expected: Outcome | str, exit_code: int, printed: str, world: World
) -> dict[str, Any]:
    """Compares what `sps doctor` sent with what kubectl sent; returns the first failed check."""
    got = world.take(case["scheme"])
    failed = [one for one in json.loads(printed)["checks"] if one["outcome"] == "failed"]
    # (What answers is no API server.)
    assert exit_code != 0
    assert failed[0]["found"]
    if isinstance(expected, str) or lacks_user(case):
        assert not got.requests or lenient(case), failed
        return dict(failed[0])
    assert {one[1:] for one in got.requests} == {one[1:] for one in expected.requests}, failed
    prefix = min(expected.requests)[0].removesuffix("/version")
    assert all(one[0].startswith(f"{prefix}/") for one in got.requests)
    assert {path for path, *_ in got.requests if "/namespaces/" in path} == {
        f"{prefix}/api/v1/namespaces/{NAMESPACE}/pods",
        f"{prefix}/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets",
    }
    assert (got.proxied, got.infos) == (expected.proxied, expected.infos)
    return dict(failed[0])


def compare_doctor(world: World, case: Case, expected: Outcome | str, ours: Outcome | str) -> None:
    """Compares what `sps doctor` does, which runs in this process, with kubectl and ours."""
    variables = world.use(case)
    # (Where nothing answers, it tries again until then.)
    patience = ["--timeout=1"] if isinstance(expected, str) else []
    with surroundings(world, variables):
        ended = CliRunner().invoke(
            cli._app("doctor"), words_of_doctor(case, *patience), prog_name="sps"
        )
    failed = judge_doctor(case, expected, ended.exit_code, ended.stdout, world)
    if isinstance(ours, str) and "is not valid: expected" in ours:
        said = f"{failed['found']} ({failed['fix']})" if failed["fix"] else failed["found"]
        assert said == ours
        assert ended.exit_code == 2


def compare(kubectl: Path, world: World, case: Case) -> tuple[Outcome | str, Outcome | str]:
    """Compares what reaches the server; returns it, from kubectl and from us."""
    expected = by_kubectl(kubectl, world, case)
    got = by_us(world, case)
    if isinstance(expected, str):
        assert isinstance(got, str) or lenient(case), (got, expected)
    elif lacks_user(case):
        assert isinstance(got, str), got
        assert "expected a user of the kubeconfig" in got
    else:
        assert got == expected
    return expected, got


@pytest.mark.parametrize("changed", list(each_value()), ids=str)
def test_each_value(kubectl: Path, world: World, changed: dict[str, Any]) -> None:
    case = {**DEFAULTS, **changed}
    expected, ours = compare(kubectl, world, case)
    if changed in DOCTOR_IN_PROCESS and (case["--context"] or case["current-context"]):
        compare_doctor(world, case, expected, ours)


@pytest.mark.parametrize("mode", ["Never", "IfAvailable", "Always"])
def test_a_plugin_at_a_terminal(kubectl: Path, world: World, mode: str) -> None:
    """kubectl gives it the terminal; we never do, so we refuse one that must have it."""
    described = {"command": "./plugin", "interactiveMode": mode}
    case = {**DEFAULTS, "token": None, "exec": described}
    with contextlib.ExitStack() as stack:
        ours, theirs = os.openpty()
        stack.callback(os.close, ours)
        stack.callback(os.close, theirs)
        expected = by_kubectl(kubectl, world, case, theirs)
    assert isinstance(expected, Outcome), expected
    assert is_interactive(expected) == (mode != "Never")
    got = by_us(world, case)
    if mode == "Always":
        assert isinstance(got, str)
        assert "exec.interactiveMode of the kubeconfig='Always'" in got
        assert "log in with it in a terminal" in got
        return
    assert isinstance(got, Outcome), got
    assert (got.requests, is_interactive(got)) == (expected.requests, False)


def is_interactive(outcome: Outcome) -> bool:
    """Whether the plug-in was told that it has a terminal."""
    (info,) = outcome.infos
    return bool(json.loads(info)["spec"]["interactive"])


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(changed=cases())
@pytest.mark.thorough
def test_several_values(kubectl: Path, world: World, changed: dict[str, Any]) -> None:
    compare(kubectl, world, {**DEFAULTS, **changed})
