"""Servers, proxies and files for kubeconfigs, and the values of their fields."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kube.background import Background
from tests.kube.certificates import Authority
from tests.kube.proxies.network_proxies import ForwardingProxy, http_proxy, socks_proxy
from tests.kube.recording_server import RecordingServer, recording_server

#: Names that only proxies resolve.
NAMES = {"api.corp.test": "127.0.0.1", "corp.test": "127.0.0.1"}
EXEC_VERSION = "client.authentication.k8s.io/v1"

#: Of a user of OIDC; it expires in the year 2100.
ID_TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjQxMDI0NDQ4MDB9.c2ln"
#: Likewise; it expired in the year 2001.
EXPIRED_ID_TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjEwMDAwMDAwMDB9.c2ln"
#: The name of the second context.
SECOND = "second"
OIDC = {"idp-issuer-url": "https://127.0.0.1:1", "client-id": "x"}

#: The values of each field; the first works with the first ones of all others. In texts, names in
#: braces stand for what `World.names` has.
VALUES: dict[str, list[Any]] = {
    "scheme": ["https", "http", "HTTPS"],
    "host": ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "api.corp.test", "corp.test"],
    "login": ["", "ada:p%40ss@"],
    "path": ["", "/", "/k8s/clusters/c-1", "/k8s/clusters/c-1/", "/k8s?x=1#y", "/a%20b"],
    "certificate-authority": [None, "ca.crt", "{directory}/ca.crt", "noted.crt", "other.crt", "no"],
    "certificate-authority-data": [
        "{ca}",
        None,
        "",
        "{folded_ca}",
        "{noted_ca}",
        "{other_ca}",
        "{der_ca}",
        "aGVsbG8=",
        "no base64",
    ],
    "insecure-skip-tls-verify": [None, False, True, "true"],
    "tls-server-name": [None, "", "kubernetes.default", "other.test"],
    "proxy-url": [
        None,
        "",
        "http://127.0.0.1:{http}",
        "http://ada:p%40ss@127.0.0.1:{login}",
        "http://127.0.0.1:{login}",
        "socks5://127.0.0.1:{socks}",
        "127.0.0.1:{http}",
        "ftp://127.0.0.1:{http}",
    ],
    "disable-compression": [None, True],
    "extensions": [
        None,
        [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}],
        [{"name": "other", "extension": {"x": 1}}],
    ],
    "token": ["static", None, "", 123],
    "tokenFile": [None, "", "token", "{directory}/token", "no-file"],
    "username": [None, "", "ada"],
    "password": [None, "", "pä:ss"],
    "client-certificate": [None, "alice.crt", "{directory}/alice.crt", "both.pem"],
    "client-certificate-data": [None, "", "{alice_certificate}", "aGVsbG8="],
    "client-key": [None, "alice.key", "both.pem", "no-file"],
    "client-key-data": [None, "", "{alice_key}", "{bob_key}"],
    "exec": [
        None,
        {"command": "./plugin", "interactiveMode": "Never"},
        {"command": "plugin", "interactiveMode": "IfAvailable"},
        {"command": "programs/plugin", "args": ["cert"], "interactiveMode": "Never"},
        {"command": "../{name}/plugin", "args": ["both", "x y"], "interactiveMode": "Never"},
        {"command": "./plugin", "interactiveMode": "Never", "provideClusterInfo": True},
        {
            "command": "./plugin",
            "env": [{"name": "OF", "value": "-env"}],
            "interactiveMode": "Never",
        },
        {"command": "./plugin", "env": [{"name": "OF", "value": 1}], "interactiveMode": "Never"},
        {"command": "./plugin", "args": ["nothing"], "interactiveMode": "Never"},
        {"command": "./plugin", "args": ["half"], "interactiveMode": "Never"},
        {"command": "./plugin", "args": ["yaml"], "interactiveMode": "Never"},
        {"command": "./plugin", "args": ["fails"], "interactiveMode": "Never"},
        {"command": "./plugin"},
        {"command": "./plugin", "interactiveMode": "Always"},
        {"command": "./plugin", "interactiveMode": "Sometimes"},
        {"command": "./missing", "interactiveMode": "Never"},
        {"command": "here", "interactiveMode": "Never"},
        {"command": "./plugin", "apiVersion": "client.authentication.k8s.io/v1beta1"},
        {"command": "./plugin", "apiVersion": "client.authentication.k8s.io/v1alpha1"},
    ],
    "auth-provider": [
        None,
        {"name": "oidc", "config": OIDC},
        {"name": "oidc", "config": {**OIDC, "id-token": "{id_token}"}},
        {"name": "oidc", "config": {**OIDC, "id-token": EXPIRED_ID_TOKEN}},
        {"name": "oidc", "config": {**OIDC, "id-token": "no.token"}},
        {"name": "oidc", "config": {}},
        {"name": "gcp", "config": {"access-token": "x"}},
        {"name": "azure"},
        {"name": "made-up"},
    ],
    "as": [None, "", "bob"],
    "as-uid": [None, "7"],
    "as-groups": [None, [], ["a", "b c"]],
    "as-user-extra": [None, {}, {"Reason/why%": ["x", "w"], "scopes": ["z"]}],
    "names": ["c", "my cluster", "ü/b@c:d", "2024-01-01"],
    # (Of contexts; SECOND is for another path of the server, with another token.)
    "current-context": ["{context}", SECOND, None, "", "missing", "without a cluster"],
    "--context": [None, "{context}", SECOND, "missing", "without a cluster", "without a user"],
    "namespace": ["team-a", None, ""],
    "files": [
        "one",
        "two",
        "two with others of the same names",
        "two with all names twice",
        "two and a missing one",
        "two and an empty one",
        "one twice",
        "tabs",
        "with a byte order mark",
    ],
    "HTTPS_PROXY": [
        None,
        "",
        "http://127.0.0.1:{http}",
        "127.0.0.1:{http}",
        "socks5://127.0.0.1:{socks}",
        "socks5h://127.0.0.1:{socks}",
        "http://127.0.0.1:1",
    ],
    "HTTP_PROXY": [None, "http://127.0.0.1:{http}", "socks5://127.0.0.1:{socks}"],
    "NO_PROXY": [
        None,
        "",
        "*",
        "0.0.0.0/8",
        "0.0.0.0:{port}",
        "0.0.0.0:1",
        "corp.test",
        ".corp.test",
        "*.corp.test:{port}",
        "::1, localhost",
    ],
    "lower": [False, True],
    "REQUEST_METHOD": [None, "GET"],
}
Case = Mapping[str, Any]
#: Fields of the cluster and of the user, as the kubeconfig has them.
OF_CLUSTER = (
    "certificate-authority",
    "certificate-authority-data",
    "insecure-skip-tls-verify",
    "tls-server-name",
    "proxy-url",
    "disable-compression",
    "extensions",
)
OF_USER = (
    "token",
    "tokenFile",
    "username",
    "password",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "exec",
    "auth-provider",
    "as",
    "as-uid",
    "as-groups",
    "as-user-extra",
)
PLUGIN = """#!/bin/sh
cd {log} && echo "$KUBERNETES_EXEC_INFO" >> infos
version=client.authentication.k8s.io/v1
case "$KUBERNETES_EXEC_INFO" in *v1beta1*) version=client.authentication.k8s.io/v1beta1;; esac
certificate='"clientCertificateData": {certificate}'
key='"clientKeyData": {key}'
token='"token": "{token}'"$OF"'"'
case "$1" in
  "") status="$token";;
  cert) status="$certificate, $key";;
  both) status="$certificate, $key, $token";;
  half) status="$certificate, $token";;
  nothing) status="";;
  yaml) printf 'apiVersion: %s\nkind: ExecCredential\nstatus:\n  token: of-yaml\n' $version
    exit 0;;
  *) exit 1;;
esac
head='"apiVersion": "'"$version"'", "kind": "ExecCredential"'
printf '%s\n' "{{$head, \\"status\\": {{$status}}}}"
"""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What reached the server.

    Attributes:
      requests: Path, headers, host, name in TLS, and the client's certificate of each; empty: none.
      proxied: The places that each proxy was asked for.
      infos: What plug-ins were told.
    """

    requests: frozenset[tuple[Any, ...]]
    proxied: frozenset[tuple[str, str]]
    infos: frozenset[str]


class World:
    """Servers, proxies, and directories with the files that a kubeconfig may name.

    ``one`` has the right files. ``clusters`` has them for clusters only, ``users`` for users only;
    the current directory has none.
    """

    def __init__(self, root: Path, servers: Background) -> None:
        self.root = root
        authority, other = Authority("corp"), Authority("other")
        hosts = ["127.0.0.1", "::1", "0.0.0.0", "localhost", "kubernetes.default", *NAMES]
        certificate = authority.issue("api", hosts=hosts)
        self._servers: dict[str, RecordingServer] = {
            "https": servers.enter(recording_server(certificate, authority.certificate)),
            "http": servers.enter(recording_server(None)),
        }
        self._proxies: dict[str, ForwardingProxy] = {
            "http": servers.enter(http_proxy(NAMES)),
            "login": servers.enter(http_proxy(NAMES, login=("ada", "p@ss"))),
            "socks": servers.enter(socks_proxy(NAMES)),
        }
        alice, bob = authority.issue("alice"), authority.issue("bob")
        noted = f"# Autorité\n{authority.certificate}"
        encoded = encode(authority.certificate.encode())
        self._names = {
            "ca": encoded,
            "folded_ca": "\n".join(encoded[i : i + 60] for i in range(0, len(encoded), 60)),
            "noted_ca": encode("# Autorité\n".encode("latin-1") + authority.certificate.encode()),
            "other_ca": encode(other.certificate.encode()),
            "der_ca": encode(b"\x30\x03\x02\x01\x01"),
            "alice_certificate": encode(alice[0].encode()),
            "alice_key": encode(alice[1].encode()),
            "bob_key": encode(bob[1].encode()),
            "id_token": ID_TOKEN,
            **{name: str(proxy.port) for name, proxy in self._proxies.items()},
        }
        for name in ("one", "clusters", "users", "here", "bin", "home"):
            directory = root / name
            (directory / "programs").mkdir(parents=True)
            has_cluster, has_user = name in ("one", "clusters"), name in ("one", "users")
            wrong = other.certificate
            files = {
                "ca.crt": authority.certificate if has_cluster else wrong,
                "noted.crt": noted if has_cluster else wrong,
                "other.crt": other.certificate,
                "token": f"of-{name}\n",
                "alice.crt": alice[0] if has_user else wrong,
                "alice.key": alice[1] if has_user else bob[1],
                "both.pem": alice[1] + alice[0] if has_user else wrong,
            }
            for file, text in files.items():
                (directory / file).write_text(text)
            shown = {"certificate": json.dumps(alice[0]), "key": json.dumps(alice[1])}
            for program in ("plugin", "programs/plugin", *(["here"] if name == "here" else [])):
                path = directory / program
                path.write_text(PLUGIN.format(log=root, token=f"{name}-{program}", **shown))
                path.chmod(0o700)

    def use(self, case: Case) -> dict[str, str]:
        """Writes the kubeconfigs of a case; returns the variables for its client."""
        scheme = case["scheme"].lower()
        port = self._servers[scheme].port
        server = f"{case['scheme']}://{case['login']}{case['host']}:{port}{case['path']}"
        is_one = not case["files"].startswith("two")
        places = {"cluster": "one" if is_one else "clusters", "user": "one" if is_one else "users"}
        cluster = {"server": server, **self._fields(case, OF_CLUSTER, places["cluster"])}
        user = self._fields(case, OF_USER, places["user"])
        if case["exec"]:
            user["exec"] = {"apiVersion": EXEC_VERSION, **user["exec"]}
        documents = self._documents(case, server, cluster, user)
        files = [self.root / place / "config" for place in documents]
        for file, document in zip(files, documents.values(), strict=True):
            file.write_bytes(_written({"apiVersion": "v1", "kind": "Config", **document}, case))
        more = {
            "two and a missing one": [self.root / "missing", *files],
            "two and an empty one": [self.root / "empty", *files],
            "one twice": files * 2,
        }
        files = more.get(case["files"], files)
        variables = {
            (field.lower() if case["lower"] else field): self._filled(case[field], "", port)
            for field in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
            if case[field] is not None
        }
        if case["REQUEST_METHOD"]:
            variables["REQUEST_METHOD"] = case["REQUEST_METHOD"]
        variables["KUBECONFIG"] = os.pathsep.join(map(str, files))
        variables["PATH"] = os.pathsep.join([str(self.root / "bin"), ".", os.environ["PATH"]])
        return variables

    def _documents(
        self, case: Case, server: str, cluster: dict[str, Any], user: dict[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Returns the kubeconfigs by the directory that each is for."""
        name = case["names"]
        place = "one" if not case["files"].startswith("two") else "clusters"
        other = "one" if place == "one" else "users"
        namespace = {} if case["namespace"] is None else {"namespace": case["namespace"]}
        second = {**cluster, "server": f"{server.partition('?')[0].rstrip('/')}/second"}
        contexts = {
            name: {"cluster": name, "user": name, **namespace},
            SECOND: {"cluster": SECOND, "user": SECOND, "namespace": "team-b"},
            "without a cluster": {"cluster": "missing", "user": name},
            "without a user": {"cluster": name, "user": "missing"},
        }
        users = {name: user, SECOND: {"token": "of-second"}}
        documents: dict[str, dict[str, Any]] = {
            place: {"clusters": _named("cluster", {name: cluster, SECOND: second})}
        }
        last = documents.setdefault(other, {})
        last.update(users=_named("user", users), contexts=_named("context", contexts))
        if (current := case["current-context"]) is not None:
            last["current-context"] = current.format(context=name)
        nowhere = {"server": "https://127.0.0.1:1"}
        if case["files"] == "two with others of the same names":
            last["clusters"] = _named("cluster", {name: nowhere})
        if case["files"] == "two with all names twice":
            documents["here"] = {
                "clusters": _named("cluster", {name: nowhere, SECOND: nowhere}),
                "users": _named("user", {name: {"token": "twice"}, SECOND: {"token": "twice"}}),
                "contexts": _named("context", {name: {**contexts[SECOND], "namespace": "twice"}}),
                "current-context": SECOND,
            }
        return documents

    def _fields(self, case: Case, fields: tuple[str, ...], place: str) -> dict[str, Any]:
        return {
            field: self._filled(case[field], place, 0)
            for field in fields
            if case[field] is not None
        }

    def _filled(self, value: Any, place: str, port: int) -> Any:
        if isinstance(value, str) and "{" in value:
            known = {**self._names, "directory": self.root / place, "name": place, "port": port}
            return value.format(**known)
        if isinstance(value, dict):
            return {name: self._filled(one, place, port) for name, one in value.items()}
        return value

    def take(self, scheme: str) -> Outcome:
        """Returns what has reached the server since the last call."""
        server = self._servers[scheme.lower()]
        infos = self.root / "infos"
        outcome = Outcome(
            requests=frozenset(
                (one.target.partition("?")[0], *dataclasses.astuple(one)[1:]) for one in server.seen
            ),
            proxied=frozenset(
                (name, place) for name, proxy in self._proxies.items() for place in proxy.asked
            ),
            infos=frozenset(_sorted(infos.read_text())) if infos.exists() else frozenset(),
        )
        server.seen.clear()
        for proxy in self._proxies.values():
            proxy.asked.clear()
        infos.unlink(missing_ok=True)
        return outcome


def _named(kind: str, entries: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, kind: entry} for name, entry in entries.items()]


def encode(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _sorted(infos: str) -> list[str]:
    lines = filter(None, infos.splitlines())
    return [json.dumps(json.loads(line), sort_keys=True) for line in lines]


def _written(document: Mapping[str, Any], case: Case) -> bytes:
    if case["files"] == "tabs":
        return json.dumps(document, indent="\t").encode()
    text = yaml.safe_dump(document, allow_unicode=True).replace("'2024-01-01'", "2024-01-01")
    return text.encode("utf-8-sig" if case["files"] == "with a byte order mark" else "utf-8")
