"""Credential plug-ins that a kubeconfig names, e.g. ``gke-gcloud-auth-plugin``.

The protocol: "client-go credential plugins" and "client.authentication.k8s.io/v1" of the
Kubernetes documentation.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["Plugin"]

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_SHOWN_LINES = 5
_CLUSTER_FIELDS = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Credential:
    """A plug-in's output: a token, or a client's PEM chain and key, or both.

    Attributes:
      expires_at: Seconds since the epoch; None: valid until it is refused.
    """

    token: str = dataclasses.field(repr=False)
    certificate: str
    key: str = dataclasses.field(repr=False)
    expires_at: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plugin:
    """A plug-in, as the kubeconfig describes it.

    Attributes:
      exec: The ``exec`` of the user.
      cluster: The cluster, for plug-ins that request its description.
      where: Base directory of a relative command.
    """

    exec: Mapping[str, Any] = dataclasses.field(repr=False)
    cluster: Mapping[str, Any] = dataclasses.field(repr=False)
    where: Path

    def __post_init__(self) -> None:
        if not self.exec.get("command"):
            raise InvalidRequestError("exec.command of the kubeconfig", "", "a program")
        if self.exec.get("apiVersion") not in _VERSIONS:
            raise InvalidRequestError(
                "exec.apiVersion of the kubeconfig",
                self.exec.get("apiVersion"),
                " or ".join(_VERSIONS),
            )
        if self.exec.get("interactiveMode") == "Always":
            raise InvalidRequestError(
                "exec.interactiveMode of the kubeconfig",
                "Always",
                "a plug-in that needs no terminal: it runs in the background",
            )

    @property
    def name(self) -> str:
        """The program's name."""
        return str(self.exec["command"])

    async def run(self) -> Credential:
        """Runs the plug-in.

        Raises:
          AccessDenied: It is missing, failed, did not end in time, or returned no credential.
        """
        try:
            status, output, complaints = await self._output()
        except OSError as error:
            raise self.denied(f"cannot be started: {error}") from error
        except TimeoutError as error:
            raise self.denied(f"did not end within {timeouts.EXEC_PLUGIN.s:g} s") from error
        if status != 0:
            last = "\n".join(complaints.decode(errors="replace").splitlines()[-_SHOWN_LINES:])
            raise self.denied(f"ended with {status}: {last}")
        try:
            return _credential(json.loads(output))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.denied(f"gave no ExecCredential: {error!r}") from error

    async def _output(self) -> tuple[int, bytes, bytes]:
        process = await asyncio.create_subprocess_exec(
            self._command(),
            *map(str, self.exec.get("args") or ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
            # A session of its own, so that its child processes can be ended with it.
            start_new_session=True,
        )
        try:
            async with within(timeouts.EXEC_PLUGIN):
                output, complaints = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0, output, complaints

    def _command(self) -> str:
        command = Path(self.name)
        return str(self.where / command) if len(command.parts) > 1 else self.name

    def _environment(self) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": False}
        if self.exec.get("provideClusterInfo"):
            spec["cluster"] = _described(self.cluster)
        info = {"apiVersion": self.exec["apiVersion"], "kind": "ExecCredential", "spec": spec}
        named = {str(item["name"]): str(item["value"]) for item in self.exec.get("env") or ()}
        return {**os.environ, **named, "KUBERNETES_EXEC_INFO": json.dumps(info)}

    def denied(self, what: str) -> AccessDenied:
        """Returns the error for a plug-in that failed."""
        return AccessDenied(
            f"no credentials for the cluster: {self.name} {what}",
            verb="connect",
            resource="cluster",
            hint=str(self.exec.get("installHint") or ""),
        )


def _described(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a cluster that the protocol sends, named as in the kubeconfig."""
    described = {name: cluster[name] for name in _CLUSTER_FIELDS if name in cluster}
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            described["config"] = extension.get("extension")
    return described


def _credential(answer: Mapping[str, Any]) -> Credential:
    status = answer["status"]
    until = status.get("expirationTimestamp")
    given = Credential(
        token=str(status.get("token") or ""),
        certificate=str(status.get("clientCertificateData") or ""),
        key=str(status.get("clientKeyData") or ""),
        expires_at=datetime.datetime.fromisoformat(until).timestamp() if until else None,
    )
    if not given.token and not given.certificate:
        raise ValueError("neither token nor clientCertificateData")
    return given
