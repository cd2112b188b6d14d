"""Each field of a kubeconfig: absent, empty, of a wrong type, and beside others.

The right values are kubectl's, with which `test_like_kubectl` compares where there is one.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube.access import resolve, settled
from shared_pathways_service.kube.cluster import ClusterAccess, ClusterChoice
from shared_pathways_service.kube.kubeconfig import (
    access_of_context,
    kubeconfig_paths,
    read_kubeconfig,
)
from shared_pathways_service.kube.tokens import file_token
from tests.kube.certificates import Authority
from tests.kube.kubeconfigs import encoded

SERVER = "https://10.1.2.3:6443"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("corp")


@pytest.fixture
def directory(own_directories: Path) -> Path:
    made = own_directories / "kubeconfigs"
    made.mkdir(parents=True)
    return made


def write(
    directory: Path,
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None,
    *,
    name: str = "c",
) -> Path:
    document = {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": SERVER, **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **(context or {})}}],
    }
    directory.mkdir(exist_ok=True)
    path = directory / "config"
    path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
    return path


def access(path: Path) -> ClusterAccess:
    return access_of_context(read_kubeconfig([path]))


def header(one: ClusterAccess) -> str:
    return asyncio.run(one.tokens.header())


def refused(path: Path) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        access(path)
    return caught.value


# ---- servers


@pytest.mark.parametrize(
    ("server", "url"),
    [
        (SERVER, SERVER),
        (f"{SERVER}/", SERVER),
        ("HTTPS://api.test", "https://api.test"),
        ("https://api.test/k8s/clusters/c-1/", "https://api.test/k8s/clusters/c-1"),
        ("https://api.test/prefix?x=1#y", "https://api.test/prefix"),
        ("https://[2001:db8::1]:6443", "https://[2001:db8::1]:6443"),
        ("http://localhost:8001", "http://localhost:8001"),
    ],
)
def test_forms_of_a_server(directory: Path, server: str, url: str) -> None:
    path = write(directory, {"server": server})
    assert access(path).server == url
    choice = ClusterChoice(context="c", kubeconfig=(str(path),), server=url)
    assert asyncio.run(resolve(choice)).server == url


@pytest.mark.parametrize(
    "server",
    ["", None, "10.1.2.3:6443", "api.test", "ftp://x", "https://", "https://x:y", "https://[::1"],
)
def test_what_is_no_server(directory: Path, server: str | None) -> None:
    error = refused(write(directory, {"server": server}))
    assert error.field == "server of cluster c"
    assert error.value == server
    assert error.hint == f"correct it in {directory}/config"


def test_login_in_the_servers_url(directory: Path, use: Callable[[Path], None]) -> None:
    path = write(directory, {"server": "https://ada:p%40ss@api.test"}, {"token": "other"})
    assert access(path).server == "https://api.test"
    assert header(access(path)) == "Basic YWRhOnBAc3M="
    use(path)
    assert settled(ClusterChoice()).server == "https://api.test"
    assert asyncio.run(resolve(settled(ClusterChoice()))).server == "https://api.test"


def test_without_tls_no_credentials_are_sent(directory: Path) -> None:
    user = {"token": "secret", "as": "bob", "client-certificate": "missing"}
    one = access(write(directory, {"server": "http://api.test"}, user))
    assert one.tls is None
    assert header(one) == ""
    assert one.headers == (("Impersonate-User", "bob"),)


# ---- authorities and certificates


def authorities(one: ClusterAccess) -> set[str]:
    """Returns the common names of the authorities that are trusted."""
    assert one.tls is not None
    named: list[Any] = [known["subject"] for known in one.tls.get_ca_certs()]
    return {dict(part[0] for part in subject)["commonName"] for subject in named}


def test_data_counts_before_a_file_unless_it_is_empty(
    directory: Path, authority: Authority
) -> None:
    (directory / "ca.crt").write_text(Authority("of the file").certificate)
    file = {"certificate-authority": "ca.crt"}
    data = {"certificate-authority-data": encoded(authority.certificate)}
    folded = "\n".join(data["certificate-authority-data"][i : i + 64] for i in range(0, 4096, 64))
    assert authorities(access(write(directory, file))) == {"of the file"}
    assert authorities(access(write(directory, {**file, **data}))) == {"corp"}
    assert authorities(
        access(write(directory, {**file, "certificate-authority-data": folded}))
    ) == {"corp"}
    for absent in ("", None):
        mixed = {**file, "certificate-authority-data": absent}
        assert authorities(access(write(directory, mixed))) == {"of the file"}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("certificate-authority", "missing.crt", "No such file"),
        ("certificate-authority", ".", "Is a directory"),
        ("certificate-authority", "config", "no PEM certificate"),
        ("certificate-authority-data", "aGVsbG8=", "no PEM certificate"),
        ("certificate-authority-data", "no base64", "base64"),
        ("certificate-authority-data", 7, "in quotes"),
    ],
)
def test_an_authority_that_is_none(directory: Path, field: str, value: Any, said: str) -> None:
    error = refused(write(directory, {field: value}))
    assert error.field == f"{field} of cluster c"
    assert said in error.expected
    assert error.value == (value if field == "certificate-authority" else "(not shown)")


def test_a_server_that_is_not_verified(directory: Path, authority: Authority) -> None:
    data = {"certificate-authority-data": encoded(authority.certificate)}
    insecure = access(write(directory, {"insecure-skip-tls-verify": True})).tls
    assert insecure is not None
    assert insecure.verify_mode == ssl.CERT_NONE
    for unset in (False, None):
        verified = access(write(directory, {"insecure-skip-tls-verify": unset, **data})).tls
        assert verified is not None
        assert verified.verify_mode == ssl.CERT_REQUIRED
    both = refused(write(directory, {"insecure-skip-tls-verify": True, **data}))
    assert both.field == "insecure-skip-tls-verify of cluster c"
    text = refused(write(directory, {"insecure-skip-tls-verify": "false"}))
    assert (text.field, text.value) == ("insecure-skip-tls-verify of cluster c", "false")


@pytest.mark.parametrize(
    ("user", "field", "said"),
    [
        ({"client-certificate": "alice.crt"}, "client-key", "the key"),
        ({"client-certificate": "alice.crt", "client-key": "no"}, "client-key", "No such file"),
        ({"client-certificate": "no", "client-key": "alice.key"}, "client-certificate", "No such"),
        (
            {"client-certificate": "alice.key", "client-key": "alice.key"},
            "client-certificate",
            "PEM",
        ),
        (
            {"client-certificate": "alice.crt", "client-key": "bob.key"},
            "client-certificate",
            "(?i)mismatch",
        ),
    ],
)
def test_a_client_certificate_that_is_none(
    directory: Path, authority: Authority, user: dict[str, Any], field: str, said: str
) -> None:
    certificate, key = authority.issue("alice")
    (directory / "alice.crt").write_text(certificate)
    (directory / "alice.key").write_text(key)
    (directory / "bob.key").write_text(authority.issue("bob")[1])
    access(write(directory, {}, {"client-certificate": "alice.crt", "client-key": "alice.key"}))
    # (A key alone is of no use, and does no harm.)
    access(write(directory, {}, {"client-key": "no"}))
    error = refused(write(directory, {}, user))
    assert error.field == f"{field} of user c"
    with pytest.raises(InvalidRequestError, match=said):
        raise error


# ---- tokens, passwords, plug-ins

V1 = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
PLUGIN = {"exec": {**V1, "command": "./missing"}}


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({}, ""),
        ({"token": None, "tokenFile": "", "username": None, "exec": {}}, ""),
        ({"token": "t"}, "Bearer t"),
        ({"token": " t\n"}, "Bearer t"),
        ({"tokenFile": "token"}, "Bearer of the file"),
        ({"token": "t", "tokenFile": "token"}, "Bearer of the file"),
        ({"token": "t", "tokenFile": "missing"}, "Bearer t"),
        ({"token": "t", "tokenFile": "empty"}, "Bearer t"),
        ({"username": "ada", "password": "pä:ss"}, "Basic YWRhOnDDpDpzcw=="),
        ({"username": "ada"}, "Basic YWRhOg=="),
        ({"password": "x"}, ""),
        ({"password": "x", "tokenFile": "token"}, "Bearer of the file"),
        ({"token": "t", **PLUGIN}, "Bearer t"),
        ({"token": "t", "exec": {"command": "x", "interactiveMode": "Always"}}, "Bearer t"),
        ({"tokenFile": "token", **PLUGIN}, "Bearer of the file"),
        ({"username": "ada", **PLUGIN}, "Basic YWRhOg=="),
        ({"client-certificate": "alice.crt", "client-key": "alice.key", **PLUGIN}, ""),
    ],
)
def test_what_counts(
    directory: Path, authority: Authority, user: dict[str, Any], expected: str
) -> None:
    certificate, key = authority.issue("alice")
    texts = {"token": "of the file\n", "empty": "\n", "alice.crt": certificate, "alice.key": key}
    for name, text in texts.items():
        (directory / name).write_text(text)
    assert header(access(write(directory, {}, user))) == expected


@pytest.mark.parametrize(
    ("user", "field"),
    [
        ({"token": "hush", "username": "ada"}, "token of user c"),
        ({"token": "hush", "password": "hush"}, "token of user c"),
        ({"tokenFile": "x", "username": "ada"}, "tokenFile of user c"),
        ({"token": 123}, "token of user c"),
        ({"token": "two\nlines"}, "token of user c"),
        ({"password": 83, "username": "ada"}, "password of user c"),
        ({"username": True}, "username of user c"),
        ({"tokenFile": ["x"]}, "tokenFile of user c"),
        ({"exec": "./plugin"}, "exec of user c"),
        ({"exec": {"command": "x"}}, "exec.apiVersion of the kubeconfig"),
        (
            {"auth-provider": {"name": "gcp", "config": {"id-token": "secret"}}},
            "auth-provider of user c",
        ),
        ({"as-groups": ["a"]}, "as of user c"),
        ({"as-uid": "7"}, "as of user c"),
        ({"as-user-extra": {"a": ["b"]}}, "as of user c"),
        ({"as": "bob", "as-groups": "a"}, "as-groups of user c"),
        ({"as": "bob", "as-user-extra": {"a": "b"}}, "a of as-user-extra of user c"),
        ({"as": "two\nlines"}, "as of user c"),
    ],
)
def test_invalid_fields_of_a_user(directory: Path, user: dict[str, Any], field: str) -> None:
    error = refused(write(directory, {}, user))
    assert error.field == field
    secrets = [user.get("token"), user.get("password"), "secret"]
    assert not any(str(secret) in error.message for secret in secrets if secret)


def test_a_token_file_that_is_missing_or_goes(directory: Path) -> None:
    one = access(write(directory, {}, {"tokenFile": "missing"}))
    with pytest.raises(AccessDenied, match=f"No such file.*{directory}/missing"):
        header(one)

    async def work() -> None:
        (directory / "token").write_text("first")
        source = file_token(directory / "token")
        assert await source.header() == "Bearer first"
        (directory / "token").unlink()
        source.refused("Bearer first")
        assert await source.header() == "Bearer first"
        (directory / "token").write_text("second")
        source.refused("Bearer first")
        assert await source.header() == "Bearer second"

    asyncio.run(work())


def test_a_plugin_is_told_of_the_cluster(directory: Path, authority: Authority) -> None:
    (directory / "ca.crt").write_text(authority.certificate)
    program = directory / "plugin"
    answer = {
        **V1,
        "kind": "ExecCredential",
        "status": {"token": "t"},
    }
    program.write_text(
        f'#!/bin/sh\nprintf %s "$KUBERNETES_EXEC_INFO" > {directory}/info\n'
        f"echo '{json.dumps(answer)}'\n"
    )
    program.chmod(0o700)
    cluster = {
        "certificate-authority": "ca.crt",
        "tls-server-name": "kubernetes",
        "proxy-url": "socks5://127.0.0.1:1080",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"a": 1}}],
    }
    user = {"exec": {**PLUGIN["exec"], "command": "./plugin", "provideClusterInfo": True}}
    assert header(access(write(directory, cluster, user))) == "Bearer t"
    info = json.loads((directory / "info").read_text())
    assert info["spec"] == {
        "interactive": False,
        "cluster": {
            "server": SERVER,
            "certificate-authority-data": encoded(authority.certificate),
            "tls-server-name": "kubernetes",
            "proxy-url": "socks5://127.0.0.1:1080",
            "config": {"a": 1},
        },
    }


# ---- names and files


@pytest.mark.parametrize("name", ["my cluster", "ü/b@c:d", "2024-01-01", "0123", "yes", "~", "a#b"])
def test_names(directory: Path, name: str) -> None:
    one = access(write(directory, {}, {"token": name}, {"namespace": "n"}, name=name))
    assert (one.name, one.namespace, header(one)) == (f"context {name}", "n", f"Bearer {name}")


def test_values_that_yaml_does_not_take_for_text(directory: Path) -> None:
    path = write(directory, {}, {"token": "t"}, name="x")
    text = path.read_text()
    # A date is text for kubectl, a number is not.
    path.write_text(text.replace(": x\n", ": 2024-01-01\n"))
    assert access(path).name == "context 2024-01-01"
    path.write_text(text.replace("token: t", "token: 0123"))
    assert refused(path).field == "token of user c".replace(" c", " x")
    path.write_text(text.replace(": x\n", ": 0123\n"))
    assert refused(path).field == f"current-context of file {path}"
    path.write_text(text.replace("  name: x\n", "  name: 0123\n"))
    error = refused(path)
    assert (error.field, error.value) == (f"name of a context in {path}", 83)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: ("\ufeff" + text).encode(),
        lambda text: text.encode("utf-16"),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: json.dumps(yaml.safe_load(text), indent="\t").encode(),
        lambda text: f"# Öffentlich\n{text}".encode(),
    ],
    ids=["byte order mark", "UTF-16", "CRLF", "JSON with tabs", "comment"],
)
def test_encodings_of_a_file(directory: Path, change: Callable[[str], bytes]) -> None:
    path = write(directory, {}, {"token": "t"}, name="zürich")
    path.write_bytes(change(path.read_text(encoding="utf-8")))
    assert access(path).name == "context zürich"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("clusters: 7", "clusters in"),
        ("clusters: {a: b}", "clusters in"),
        ("users: [7]", "kubeconfig"),
        ("users: [{name: a, user: 7}]", "name of a user in"),
        ("users: [{name: a}, {name: a}]", "users in"),
        ("current-context: [a]", "current-context of file"),
        ("a: b: c", "kubeconfig"),
        ("!!python/object:os.system {}", "kubeconfig"),
        ("\x00", "kubeconfig"),
    ],
)
def test_what_is_no_kubeconfig(directory: Path, text: str, field: str) -> None:
    path = directory / "config"
    path.write_text(text)
    with pytest.raises(InvalidRequestError) as caught:
        read_kubeconfig([path])
    assert caught.value.field.startswith(field)


def test_entries_of_several_files(directory: Path) -> None:
    first = write(directory / "a", {}, {"tokenFile": "token"}, name="x")
    second = write(directory / "b", {"server": "https://other"}, {"tokenFile": "token"}, name="x")
    third = write(directory / "c", {}, {"tokenFile": "token"}, {"namespace": "n"}, name="y")
    for where in "abc":
        (directory / where / "token").write_text(where)
    config = read_kubeconfig([directory / "missing", first, second, third])
    # Each entry is of the first file that has it, and its paths are relative to this file.
    one, other = access_of_context(config), access_of_context(config, "y")
    assert (one.server, header(one)) == (SERVER, "Bearer a")
    assert (other.namespace, header(other)) == ("n", "Bearer c")
    assert config.current == "x"


def test_entries_of_one_context_in_several_files(directory: Path, authority: Authority) -> None:
    (directory / "a").mkdir()
    (directory / "b").mkdir()
    (directory / "a" / "ca.crt").write_text(authority.certificate)
    (directory / "b" / "ca.crt").write_text(Authority("of the user").certificate)
    (directory / "a" / "token").write_text("of the cluster")
    (directory / "b" / "token").write_text("of the user")
    (directory / "a" / "config").write_text(
        "current-context:\n"
        f"clusters: [{{name: c, cluster: {{server: '{SERVER}', certificate-authority: ca.crt}}}}]"
    )
    (directory / "b" / "config").write_text(
        "current-context: x\nusers: [{name: u, user: {tokenFile: token}}]\n"
        "contexts: [{name: x, context: {cluster: c, user: u}}]"
    )
    one = access_of_context(
        read_kubeconfig([directory / "a" / "config", directory / "b" / "config"])
    )
    assert (header(one), authorities(one)) == ("Bearer of the user", {"corp"})


def test_files_of_the_variable(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(directory))
    home = directory / ".kube" / "config"
    for value, expected in {
        "": [home],
        "a": [Path("a")],
        "a::b:a:": [Path("a"), Path("b")],
        ":": [],
    }.items():
        monkeypatch.setenv("KUBECONFIG", value)
        assert kubeconfig_paths() == expected
    monkeypatch.delenv("KUBECONFIG")
    assert kubeconfig_paths() == [home]
