"""Switches JAX of this process to a proxy and back; contains the plug-in for other programs.

- `attachment`: `attach` switches JAX over, and `Attachment.detach` restores it
- `internals`: the private parts of JAX that this needs
- `plugin`: the plug-in; `standalone`: copies it for interpreters without this package

Independent of services, slices and Kubernetes. Importing the package does not import JAX.
"""

from __future__ import annotations

from shared_pathways_service.jax_client.attachment import Attachment, attach
from shared_pathways_service.jax_client.target import ProxyTarget, is_strict

__all__ = ["Attachment", "ProxyTarget", "attach", "is_strict"]
