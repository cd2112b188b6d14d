"""Adapts the commands and variables of containers to this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from shared_pathways_service.runtime.location import PARENT_DIRECTORY
from shared_pathways_service.testing.google_images import MACHINE_VARIABLE
from shared_pathways_service.testing.testbed.api import Object
from shared_pathways_service.testing.testbed.node_agent.addresses import AddressBook
from shared_pathways_service.testing.testbed.node_agent.environment import (
    CannotConfigure,
    check_user,
    environment_of,
    expand,
    keys_wanted,
    replace_names,
)
from shared_pathways_service.testing.testbed.node_agent.images import ImageCommand, command_of
from shared_pathways_service.testing.testbed.node_agent.nodes import type_of
from shared_pathways_service.testing.testbed.node_agent.pod_reporter import PodReporter
from shared_pathways_service.testing.testbed.node_agent.pod_status import PodRecord
from shared_pathways_service.testing.testbed.node_agent.volumes import Volumes

__all__ = ["Commands"]

_TERMINATION_LOG = "/dev/termination-log"


class Commands:
    """Creates the commands of one pod's containers."""

    def __init__(
        self,
        pod: Object,
        record: PodRecord,
        *,
        directory: Path,
        addresses: AddressBook,
        volumes: Volumes,
        reporter: PodReporter,
    ) -> None:
        self._pod = pod
        self._namespace: str = pod["metadata"]["namespace"]
        self._record = record
        self._directory = directory
        self._addresses = addresses
        self._volumes = volumes
        self._reporter = reporter

    async def of(self, specification: Object) -> tuple[list[str], dict[str, str]]:
        """Returns a container's program with its arguments, and all its variables.

        Raises:
          CannotPull: There is no such image.
          CannotConfigure: It refers to an object that does not exist.
        """
        check_user(self._pod, specification)
        variables = await self._variables(specification)
        command = command_of(
            specification["image"],
            [expand(word, variables) for word in specification.get("command") or ()],
            [expand(word, variables) for word in specification.get("args") or ()],
        )
        return await self._placed(specification, command, variables)

    def termination_file(self, specification: Object) -> Path:
        """Returns the file of a container's termination message."""
        return self._directory / f"{specification['name']}.termination"

    async def _variables(self, specification: Object) -> dict[str, str]:
        values = {}
        for resource, name in keys_wanted(specification):
            found = await self._reporter.data_of(resource, name)
            if found is None:
                raise CannotConfigure(f'{resource.removesuffix("s")} "{name}" not found')
            values[resource, name] = {key: data.decode() for key, data in found.items()}
        status = {"podIP": self._record.address, "hostIP": self._record.node_address}
        return environment_of(specification, {**self._pod, "status": status}, values)

    async def _placed(
        self, specification: Object, command: ImageCommand, variables: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """Returns arguments and variables with paths and addresses of this machine."""
        argv, env = list(command.argv), dict(variables)
        if command.is_server and not command.knows_extensions:
            env = {name: value for name, value in env.items() if not name.startswith("SPS_")}
            # A container that requests no TPUs sees none.
            limits = (specification.get("resources") or {}).get("limits") or {}
            has_tpus = "google.com/tpu" in limits
            labels = await self._reporter.node_labels() if has_tpus else {}
            env[MACHINE_VARIABLE] = type_of(labels)
        if command.is_server or "SPS_BIND_ADDRESS" in env:
            # Binding all addresses of this machine would include those of other pods.
            env["SPS_BIND_ADDRESS"] = self._record.address
        texts = [*argv, *env.values()]
        services = await self._reporter.services()
        termination_path = str(specification.get("terminationMessagePath") or _TERMINATION_LOG)
        places = {
            **self._addresses.of_names_in(texts, self._namespace, services),
            **self._volumes.places(specification),
            termination_path: str(self.termination_file(specification)),
        }
        if command.is_plain:
            # A pod has a loopback interface of its own.
            own = ("127.0.0.1", "0.0.0.0", "localhost")  # noqa: S104
            places |= dict.fromkeys(own, self._record.address)
        placed = replace_names(texts, places)
        argv, values = placed[: len(argv)], placed[len(argv) :]
        basic = self._basic_environment(is_plain=command.is_plain)
        return argv, {**basic, **dict(zip(env, values, strict=True))}

    def _basic_environment(self, *, is_plain: bool) -> dict[str, str]:
        own = {} if is_plain else _with_this_project()
        host, port = self._reporter.api_server
        return {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self._directory),
            "TMPDIR": str(self._directory / "tmp"),
            "HOSTNAME": self._pod["spec"].get("hostname") or self._pod["metadata"]["name"],
            **own,
        }


def _with_this_project() -> dict[str, str]:
    programs = str(Path(sys.executable).parent)
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": PARENT_DIRECTORY,
        "PYTHONUNBUFFERED": "1",
    }
