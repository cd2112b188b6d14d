"""Stand-ins for Google's Pathways images, which cannot be run without a TPU.

They run this project's servers, and behave outwardly as public sources describe the images:
`proxy` for ``proxy_server``, `server` for ``server`` (resource manager and worker).

- They accept Google's flags, and refuse others.
- Their logs have Google's lines, and none of this project's; `log_texts` separates texts that are
  public from guesses.
- The proxy speaks plaintext only if ``IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS`` is exactly
  ``true``, else it hangs up on a plaintext client as ALTS does.
- It serves one client at a time, and cancels the session of a second one. It does not notice that
  a client has ended without ending its session: it then serves no other one (`held_connections`).
- It has no token, does not implement this project's own calls, and ignores this project's own
  fields in requests. It waits for taken slices without a timeout.
- It runs as the user ``nobody``.
- The resource manager answers the other stand-ins only; it does not implement this project's own
  calls.
- Two servers cannot connect, like ALTS and plaintext, if only one of them has
  ``PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS`` with the value ``grpc_insecure_override``.
- A worker has the type of its machine, else of ``TPU_TYPE``. The resource manager ignores a worker
  of a type other than its own, or without TPUs.
- A server that starts with the bucket `MISSING_BUCKET` or `FULL_BUCKET` logs the published error,
  and ends. `LOST_BUCKET` is missing from the time on at which its path is that of a file.

A proxy also takes flags that no image has, from tests: `MEMORY_WISH` limits the memory of each
device, and a program that needs more ends the proxy, with RESOURCE_EXHAUSTED and SIGTERM in its
log; `PLACEMENT_WISH` delays the placement.

`python -m` runs each; `shared_pathways_service.testing.testbed` runs them by the images' names.
docs/testbed.md says what of this is published, and what is a guess.
"""

from __future__ import annotations

__all__ = [
    "FULL_BUCKET",
    "LOST_BUCKET",
    "MACHINE_VARIABLE",
    "MEMORY_WISH",
    "MISSING_BUCKET",
    "PLACEMENT_WISH",
    "PROXY_MODULE",
    "SERVER_MODULE",
]

PROXY_MODULE = f"{__name__}.proxy"
SERVER_MODULE = f"{__name__}.server"
#: The instance type of the slice to which the worker's machine belongs, e.g. ``tpuv6e:2x2``; empty
#: on a machine without TPUs.
MACHINE_VARIABLE = "STAND_IN_MACHINE_TPU_TYPE"
#: Buckets that do not exist, and that have no room for one more lifecycle rule.
MISSING_BUCKET = "gs://no-such-bucket"
FULL_BUCKET = "gs://full-of-lifecycle-rules"
#: A bucket that is deleted while its servers run: for each it is missing once a file has its path,
#: as ``/tmp/x`` for ``gs://lost-bucket/tmp/x``.
LOST_BUCKET = "gs://lost-bucket"
#: The most bytes on a device of a proxy; and seconds before its slices are placed.
MEMORY_WISH = "--xla_stand_in_memory_bytes"
PLACEMENT_WISH = "--xla_stand_in_placement_s"
