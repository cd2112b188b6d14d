"""A laptop whose user logs in by different kinds of credentials, and whose tokens end."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from harness.testbed.clients import tenant
from shared_pathways_service.testing.testbed import Namespace, User

__all__ = ["Laptop"]

_PLUGIN = """
import json, pathlib, sys
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                  "status": {"token": pathlib.Path(sys.argv[1]).read_text()}}))
"""


def _credentials(kind: str, user: User, file: Path) -> dict[str, Any]:
    """Returns the user of a kubeconfig, whose token is in the file but for a static one."""
    if kind == "static":
        return {"token": user.token}
    if kind == "file":
        return {"tokenFile": str(file)}
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", _PLUGIN, str(file)],
        "interactiveMode": "Never",
    }
    return {"exec": plugin}


class Laptop:
    """A tenant's kubeconfig, with credentials of one kind after the other.

    Args:
      namespace: Of the service.
      root: A directory for its files.
      kubeconfig: The kubeconfig to start with, by default that of the tenant.

    Attributes:
      user: The user who is logged in.
      variables: The variables of a program on it.
    """

    def __init__(self, namespace: Namespace, root: Path, kubeconfig: Path | None = None) -> None:
        self.user = namespace.user("tenant")
        self.variables = dict(tenant(namespace))
        self._namespace = namespace
        self._file = root / "token"
        self._kubeconfig = root / "kubeconfig"
        original = kubeconfig or Path(self.variables["KUBECONFIG"])
        self._original = yaml.safe_load(original.read_text())
        self.variables["KUBECONFIG"] = str(self._kubeconfig)

    def log_in(self, kind: str, user: User) -> None:
        """Writes a user's credentials of a kind: ``static``, ``file`` or ``exec``."""
        self.user = user
        self._file.write_text(user.token)
        content = json.loads(json.dumps(self._original))
        content["users"][0]["user"] = _credentials(kind, user, self._file)
        self._kubeconfig.write_text(yaml.safe_dump(content))

    def renew(self) -> User:
        """Ends the token, and returns the user with a new one, with which nobody is logged in."""
        return self._namespace.renew_token("tenant")
