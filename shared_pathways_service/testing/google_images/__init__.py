"""Stand-ins for Google's Pathways images, which cannot be run without a TPU.

They compute with this project's servers, and behave outwardly as public sources describe the
images: `proxy` for ``proxy_server``, `server` for ``server`` (resource manager and worker).

- They know Google's flags, and refuse others.
- Their logs have Google's lines, with the sources (``proxy_server.cc:125``) that are public, and
  none of this project's.
- The proxy speaks plaintext only if ``IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS`` is exactly
  ``true``, else it hangs up on a plaintext client as ALTS does.
- It serves one client at a time, and cancels the session of a second one.
- It has no token, answers none of this project's own calls, and passes over what its clients say
  in this project's own fields. Slices that are taken are waited for without an end.
- It runs as the user ``nobody``.
- The resource manager answers the other stand-ins only; this project's own calls are unknown to it.
- Servers of which only one has ``PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS`` with the value
  ``grpc_insecure_override`` cannot connect, as of ALTS and plaintext.
- A worker is of the type of its machine, else of ``TPU_TYPE``. The resource manager does not count
  a worker of another type than its own, nor one without TPUs.

`python -m` runs each; `shared_pathways_service.testing.testbed` runs them by the images' names.
"""

from __future__ import annotations

__all__ = ["MACHINE_VARIABLE", "PROXY_MODULE", "SERVER_MODULE"]

PROXY_MODULE = f"{__name__}.proxy"
SERVER_MODULE = f"{__name__}.server"
#: The instance type of the TPU slice that the worker's machine is of, e.g. ``tpuv6e:2x2``; empty on
#: a machine without TPUs.
MACHINE_VARIABLE = "STAND_IN_MACHINE_TPU_TYPE"
