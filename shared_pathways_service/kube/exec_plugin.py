"""Credential plug-ins that a kubeconfig names, e.g. ``gke-gcloud-auth-plugin``.

The protocol: "client-go credential plugins" and "client.authentication.k8s.io/v1" of the
Kubernetes documentation. Where they leave something open, this does what client-go does
(plugin/pkg/client/auth/exec/exec.go of v0.36), except that a plug-in never gets a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube.kubeconfig_entry import NOT_SHOWN
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["Plugin"]

_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_KIND = "ExecCredential"
_MODES = ("Never", "IfAvailable")
_NEEDS_TERMINAL = "Always"
#: Version 1 has no default.
_USUAL_MODES = {_VERSIONS[1]: "IfAvailable"}
#: Of what a plug-in writes to standard error, more lines than these are left out between the first
#: lines, which have the cause, and the last ones.
_FIRST_LINES, _LAST_LINES = 30, 10
_CLUSTER_FIELDS = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
    "disable-compression",
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
        self._check("command", bool(self.exec.get("command")), "a program")
        version = self.exec.get("apiVersion") or ""
        self._check("apiVersion", version in _VERSIONS, " or ".join(_VERSIONS))
        mode = self.exec.get("interactiveMode") or _USUAL_MODES.get(version, "")
        hint = "with IfAvailable it has a terminal for kubectl, and none here"
        if mode == _NEEDS_TERMINAL:
            hint = "log in with it in a terminal; with IfAvailable it may then use this login here"
        self._check(
            "interactiveMode",
            mode in _MODES,
            f"{' or '.join(_MODES)}: a plug-in runs in the background, without a terminal",
            hint=hint,
        )
        self._check("args", _are_texts(self.exec.get("args") or []), "a list of strings, in quotes")
        self._check(
            "env", _are_pairs(self.exec.get("env") or []), "a list of names and values, in quotes"
        )

    def _check(self, field: str, is_valid: bool, expected: str, *, hint: str = "") -> None:
        if not is_valid:
            value = NOT_SHOWN if field in ("args", "env") else self.exec.get(field) or ""
            raise InvalidRequestError(f"exec.{field} of the kubeconfig", value, expected, hint=hint)

    @property
    def name(self) -> str:
        """The program's name."""
        return str(self.exec["command"])

    async def run(self) -> Credential:
        """Runs the plug-in.

        Raises:
          AccessDenied: It is missing, failed, did not end in time, or returned no credential.
        """
        program = self._program()
        try:
            status, output, complaints = await self._output(program)
        except TimeoutError as error:
            raise self.denied(
                f"did not end within {timeouts.EXEC_PLUGIN.s:g} s",
                hint=f"run {self.name} in a terminal: it may wait for a login",
            ) from error
        except OSError as error:
            raise self._not_started(program, error) from error
        if status != 0:
            raise self._failed(status, _shown(complaints))
        try:
            return self._credential(_parsed(output))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            said = str(error) if isinstance(error, ValueError) else repr(error)
            raise self.denied(f"gave no ExecCredential: {said}") from error

    async def _output(self, program: str) -> tuple[int, bytes, bytes]:
        process = await asyncio.create_subprocess_exec(
            program,
            *self.exec.get("args") or (),
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

    def _program(self) -> str:
        """Returns the program's path.

        A name with a slash is relative to the kubeconfig. One without is searched in this process's
        PATH (not in the plug-in's), and never in the current directory, whose owner may be anyone.
        """
        if "/" in self.name:
            return os.path.normpath(self.where / self.name)
        directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
        absolute = os.pathsep.join(filter(os.path.isabs, directories))
        if found := shutil.which(self.name, path=absolute):
            return found
        raise self._missing("is in no directory of PATH")

    def _missing(self, what: str) -> AccessDenied:
        known = str(self.exec.get("installHint") or "").strip()
        return self.denied(what, hint=known or f"install {self.name}, or correct exec.command")

    def _not_started(self, program: str, error: OSError) -> AccessDenied:
        if not isinstance(error, FileNotFoundError):
            return self.denied(f"cannot be started: {error}")
        if Path(program).exists():
            return self.denied(f"cannot be started: {program} names an interpreter that is missing")
        return self._missing(f"is missing: there is no file {program}")

    def _failed(self, status: int, said: str) -> AccessDenied:
        ended = f"ended with {status}" if status > 0 else f"was ended by signal {-status}"
        if said:
            # (What it says is the remedy as well: it knows its users' way to log in.)
            return self.denied(f"{ended}:\n{said}")
        return self.denied(
            f"{ended}, without a message", hint=f"run {self.name} in a terminal to see why"
        )

    def _environment(self) -> dict[str, str]:
        spec: dict[str, Any] = {"interactive": False}
        if self.exec.get("provideClusterInfo"):
            spec["cluster"] = _described(self.cluster)
        info = {"apiVersion": self.exec["apiVersion"], "kind": _KIND, "spec": spec}
        named = {item["name"]: item.get("value") or "" for item in self.exec.get("env") or ()}
        return {**os.environ, **named, "KUBERNETES_EXEC_INFO": json.dumps(info)}

    def _credential(self, answer: Mapping[str, Any]) -> Credential:
        status = answer["status"]
        until = status.get("expirationTimestamp")
        given = Credential(
            token=str(status.get("token") or ""),
            certificate=str(status.get("clientCertificateData") or ""),
            key=str(status.get("clientKeyData") or ""),
            expires_at=_time(str(until)) if until else None,
        )
        if not given.token and not given.certificate:
            raise ValueError("neither token nor clientCertificateData")
        if bool(given.certificate) != bool(given.key):
            raise ValueError("only one of clientCertificateData and clientKeyData")
        version = answer.get("apiVersion")
        if (version, answer.get("kind")) != (self.exec["apiVersion"], _KIND):
            raise self.denied(
                f"answered with {answer.get('kind')} of {version}, not with {_KIND} of "
                f"{self.exec['apiVersion']}, which exec.apiVersion of the kubeconfig names",
                hint=f"update {self.name}, or its user in the kubeconfig",
            )
        return given

    def denied(self, what: str, *, hint: str = "") -> AccessDenied:
        """Returns the error for a plug-in that failed."""
        return AccessDenied(
            f"no credentials for the cluster: {self.name} {what}",
            verb="connect",
            resource="cluster",
            hint=hint,
        )


def _parsed(output: bytes) -> Any:
    """Parses JSON or, as client-go, YAML; raises ValueError."""
    # (What a plug-in has written may contain a secret.)
    if not output.strip():
        raise ValueError("it has written nothing to standard output")
    answer = None
    # (PyYAML does not read all of JSON.)
    for parse in (json.loads, yaml.safe_load):
        with contextlib.suppress(ValueError, yaml.YAMLError):
            answer = parse(output)
            break
    if not isinstance(answer, Mapping):
        raise ValueError("its standard output is not only one, as JSON or YAML")
    return answer


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _are_pairs(items: object) -> bool:
    return isinstance(items, list) and all(
        isinstance(item, Mapping) and _are_texts([item.get("name"), item.get("value") or ""])
        for item in items
    )


def _described(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a cluster that the protocol sends, named as in the kubeconfig."""
    described = {name: cluster[name] for name in _CLUSTER_FIELDS if cluster.get(name)}
    described["config"] = None
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            described["config"] = extension.get("extension")
    return described


def _shown(complaints: bytes) -> str:
    """Returns a plug-in's messages, without the middle of long ones."""
    lines = complaints.decode(errors="replace").strip().splitlines()
    if (left_out := len(lines) - _FIRST_LINES - _LAST_LINES) > 0:
        lines[_FIRST_LINES:-_LAST_LINES] = [f"[{left_out} lines left out]"]
    return "\n".join(lines)


def _time(text: str) -> float:
    """Returns seconds since the epoch."""
    time = datetime.datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"expirationTimestamp without a time zone: {text}")
    return time.timestamp()
