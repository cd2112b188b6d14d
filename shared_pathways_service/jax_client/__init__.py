"""JAX of this process on a proxy, and off it again; the plug-in for processes that are not ours.

`attach` switches JAX over, `Attachment.detach` restores what was there. `internals` has the private
parts of JAX that this needs. Independent of services, slices and Kubernetes. Importing the package
does not import JAX.
"""

from __future__ import annotations

from shared_pathways_service.jax_client.attachment import Attachment, attach
from shared_pathways_service.jax_client.target import ProxyTarget, is_strict

__all__ = ["Attachment", "ProxyTarget", "attach", "is_strict"]
