"""Stand-ins for Google's Pathways images, which cannot be run without a TPU.

They run this project's servers, and behave outwardly as public sources describe the images:
`proxy` for ``proxy_server``, `server` for ``server`` (resource manager and worker).

- They accept Google's flags, and refuse others.
- Their logs have Google's lines, with the sources (``proxy_server.cc:125``) that are public, and
  none of this project's.
- The proxy speaks plaintext only if ``IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS`` is exactly
  ``true``, else it hangs up on a plaintext client as ALTS does.
- It serves one client at a time, and cancels the session of a second one.
- It has no token, does not implement this project's own calls, and ignores this project's own
  fields in requests. It waits for taken slices without a timeout.
- It runs as the user ``nobody``.
- The resource manager answers the other stand-ins only; it does not implement this project's own
  calls.
- Two servers cannot connect, like ALTS and plaintext, if only one of them has
  ``PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS`` with the value ``grpc_insecure_override``.
- A worker has the type of its machine, else of ``TPU_TYPE``. The resource manager ignores a worker
  of a type other than its own, or without TPUs.

`python -m` runs each; `shared_pathways_service.testing.testbed` runs them by the images' names.
"""

from __future__ import annotations

__all__ = ["MACHINE_VARIABLE", "PROXY_MODULE", "SERVER_MODULE"]

PROXY_MODULE = f"{__name__}.proxy"
SERVER_MODULE = f"{__name__}.server"
#: The instance type of the slice to which the worker's machine belongs, e.g. ``tpuv6e:2x2``; empty
#: on a machine without TPUs.
MACHINE_VARIABLE = "STAND_IN_MACHINE_TPU_TYPE"
