"""A real API server on a real etcd, and no more: a test may do to it what it likes."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.auth import crypt, jwt

from harness.deadlines import deadline
from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.testing.testbed.access_changes import wait_for_rules
from shared_pathways_service.testing.testbed.api import Api
from shared_pathways_service.testing.testbed.build import Programs
from shared_pathways_service.testing.testbed.daemons import TIED_TO_PARENT
from shared_pathways_service.testing.testbed.ports import pick_ports
from shared_pathways_service.tunnel.frames import SUBPROTOCOL
from shared_pathways_service.tunnel.websocket import handshake_headers
from tests.conftest import MARK
from tests.kube.certificates import Authority, new_key

DEADLINE_S = deadline(120.0)
_ISSUER = "https://kubernetes.default.svc"
#: Of a WebSocket for a port-forward.
HANDSHAKE = handshake_headers(bytes(16), SUBPROTOCOL)


class ControlPlane:
    """etcd and kube-apiserver; `admin` may do everything, `alice` what a test allows her."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self.directory = Path(tempfile.mkdtemp(prefix="sps"))
        self.admin, self.alice = secrets.token_hex(8), secrets.token_hex(8)
        self._etcd_port, peer_port, self._port = pick_ports(3)
        self.url = f"https://127.0.0.1:{self._port}"
        self.etcd_url = f"http://127.0.0.1:{self._etcd_port}"
        self.clients = Authority("clients")
        self._write("clients.crt", self.clients.certificate)
        servers = Authority("servers")
        self.authority = servers.certificate
        self._write("servers.crt", servers.certificate)
        certificate, key = servers.issue("kube-apiserver", address="127.0.0.1")
        self._write("server.crt", certificate)
        self._write("server.key", key)
        private, public = new_key()
        self._write("sa.key", private)
        self._write("sa.pub", public)
        self._write(
            "tokens.csv", f'{self.admin},admin,1,"system:masters"\n{self.alice},alice,2,"tenants"\n'
        )
        self._server: subprocess.Popen[bytes] | None = None
        peer = f"http://127.0.0.1:{peer_port}"
        self._etcd = self._run(
            "etcd",
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def _write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def _run(self, name: str, *flags: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*TIED_TO_PARENT, self._programs.path(name), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                # It outlives the test that starts it again.
                env={k: v for k, v in os.environ.items() if k != MARK},
            )

    def start(self) -> None:
        """Starts the API server, and waits until it is ready."""
        self.spawn()
        self.wait_until_ready()

    def spawn(self) -> None:
        """Starts the API server, which ends with the calling thread."""
        assert self._server is None
        self._server = self._run(
            "kube-apiserver",
            f"--etcd-servers={self.etcd_url}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            "--tls-cert-file=server.crt",
            "--tls-private-key-file=server.key",
            "--client-ca-file=clients.crt",
            "--service-account-key-file=sa.pub",
            "--service-account-signing-key-file=sa.key",
            f"--service-account-issuer={_ISSUER}",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--disable-admission-plugins=ServiceAccount",
        )

    def wait_until_ready(self) -> None:
        assert self._server is not None
        deadline = time.monotonic() + DEADLINE_S
        while not self._is_ready():
            log = (self.directory / "kube-apiserver.log").read_text()[-3000:]
            assert self._server.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return bool(self.call("GET", "/readyz") == "ok")
        except OSError:
            return False

    @property
    def is_up(self) -> bool:
        return self._server is not None

    def kill(self) -> None:
        """Kills the API server, as `kill -9` does."""
        assert self._server is not None
        self._server.send_signal(signal.SIGKILL)
        self._server.wait()
        self._server = None

    def stop(self) -> None:
        if self._server is not None:
            self.kill()
        self._etcd.kill()
        self._etcd.wait()
        shutil.rmtree(self.directory)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """A request of the administrator's, by other means than those under test."""
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.admin}",
                "Content-Type": "application/merge-patch+json"
                if method == "PATCH"
                else "application/json",
            },
        )
        context = client_tls(authority=self.authority)
        with urllib.request.urlopen(request, timeout=deadline(20.0), context=context) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def wait_for_rules(self, namespace: str, rules: Sequence[Mapping[str, Any]]) -> None:
        """Waits until rules that were bound to alice are in force (namespace "": in all)."""
        wait_for_rules(
            Api(self.url, self.directory / "servers.crt", self.admin), namespace, "alice", rules
        )

    def compact(self) -> None:
        """Makes etcd forget all but the present."""
        revision = self._etcd_call("range", {"key": "AA=="})["header"]["revision"]
        self._etcd_call("compaction", {"revision": revision, "physical": True})

    def _etcd_call(self, what: str, body: object) -> Any:
        request = urllib.request.Request(
            f"{self.etcd_url}/v3/kv/{what}", data=json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=deadline(20.0)) as answer:
            return json.load(answer)

    def expired_token(self, account: dict[str, Any]) -> str:
        """Returns a token of a service account that was good until an hour ago."""
        metadata, now = account["metadata"], int(time.time())
        claims = {
            "iss": _ISSUER,
            "aud": [_ISSUER],
            "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
            "iat": now - 7200,
            "exp": now - 3600,
            "kubernetes.io": {
                "namespace": metadata["namespace"],
                "serviceaccount": {"name": metadata["name"], "uid": metadata["uid"]},
            },
        }
        signer = crypt.RSASigner.from_string((self.directory / "sa.key").read_text())
        token: bytes = jwt.encode(signer, claims)
        return token.decode()

    def kubeconfig(self, user: dict[str, Any], *, namespace: str = "", url: str = "") -> Path:
        """Writes a kubeconfig with one context, ``tb``; returns its path.

        Args:
          user: As the kubeconfig has it.
          namespace: Of the context.
          url: Where the API server is to be found instead.
        """
        context = {"cluster": "tb", "user": "me"}
        if namespace:
            context["namespace"] = namespace
        authority = base64.b64encode(self.authority.encode()).decode()
        cluster = {"server": url or self.url, "certificate-authority-data": authority}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tb",
            "clusters": [{"name": "tb", "cluster": cluster}],
            "users": [{"name": "me", "user": user}],
            "contexts": [{"name": "tb", "context": context}],
        }
        path = self.directory / f"kubeconfig-{secrets.token_hex(4)}"
        path.write_text(json.dumps(document))
        return path
