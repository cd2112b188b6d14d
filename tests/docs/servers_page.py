"""Writes the pages of the servers' flags and of the settings, from their dataclasses."""

from __future__ import annotations

import dataclasses
import math
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shared_pathways_service.api.proxy_limits import LIMITS
from shared_pathways_service.constants import PROXY_PORT, RESOURCE_MANAGER_PORT, WORKER_PORT
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.runtime import settings
from shared_pathways_service.servers.executor.flags import ExecutorOptions
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from shared_pathways_service.servers.worker.flags import WorkerOptions
from shared_pathways_service.testing.testbed.supervisor import TestbedOptions
from tests.docs import docstrings
from tests.docs.markdown import code, page, split_default, table

__all__ = ["SERVERS", "servers_text", "settings_text"]

_PACKAGE = "shared_pathways_service."
#: By module: the class of its options, and a description.
SERVERS: Mapping[str, tuple[type, str]] = {
    "servers.resource_manager": (
        ResourceManagerOptions,
        f"Grants slices to tenants. Port {RESOURCE_MANAGER_PORT} in a cluster.",
    ),
    "servers.worker": (
        WorkerOptions,
        f"One per host; reports the host's health. Port {WORKER_PORT} in a cluster.",
    ),
    "servers.proxy": (
        ProxyServerOptions,
        f"One per tenant; compiles and runs JAX's programs. Port {PROXY_PORT} in a cluster.",
    ),
    "servers.executor": (
        ExecutorOptions,
        "One per host of a proxy with `--engine=distributed`: [several hosts](../distributed.md).",
    ),
    "servers.supervisor": (
        SupervisorOptions,
        "Runs the embedded service: starts the other three on this machine, as `sps serve` does.",
    ),
    "testing.testbed": (
        TestbedOptions,
        "Runs a [testbed](../testbed.md), as `sps testbed up` does.",
    ),
}

_HEAD = """\
# Flags of the servers

This page lists every flag, from the code. `python -m MODULE --help` prints the same.

Flags are written `--name=value` or `--name value`; a switch is `--name` or `--noname`. A flag takes
precedence over its variable, and a variable over the default. A wrong flag ends a server with exit
code 2, and the message says what would be right. Flags of Google's images have the same names here.
"""

_SETTINGS_HEAD = """\
# Settings and variables

This page lists the settings that a user can make once instead of with every call, from the code. An
argument takes precedence over the variable, that over the profile, and that over the default.

A profile is a table of the settings file (`SPS_CONFIG`). The profile `default` is used unless
`SPS_PROFILE` or `connect(profile=…)` names another.

```toml
[profiles.default]
log_level = "WARNING"

[profiles.small]
compile_cache_bytes = 100_000_000
```

"""

_OTHERS = """
## How long to wait

Time-outs adapt to the machine: a process measures how long it waits for a processor, how busy the
machine is, and whether it was stalled, and multiplies each time-out by 1 (a quiet machine) to 10.
`SPS_PATIENCE` sets this factor instead, from 0.01 to 100, for a process and those that it starts:
the agent of a connection, and the servers of an embedded service. Intervals and your own limits,
such as `connect(timeout=…)` and `queue_timeout=`, remain what they are ([ADR 145]).

## Variables of limits

These are an operator's limits for proxies. [Isolation](../isolation.md) says what each counts.

{limits}
## Inside a block, and in a child of `sps run`

These variables are set during the connection, so that child processes find the proxy too.
Afterwards their old values are restored.

| variable | what |
| --- | --- |
| `JAX_PLATFORMS` | `proxy,cpu`, or `proxy` with `local_devices=False` |
| `JAX_BACKEND_TARGET` | the proxy: `grpc://…`, or `sps-jax-plugin://…` if it needs the plug-in |
| `IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS` | `true` for plaintext, `false` for ALTS |
| `SPS_TOKEN_FILE` | the file with the proxy's token, readable by its user only |
| `SPS_STRICT` | `1` in strict mode; if you set it, `connect()` and `sps run` follow it |
| `SPS_TRANSFER_DIR` | the directory in which large arrays are passed to a proxy on this machine |
| `IFRT_PROXY_GRPC_MAX_ONGOING_HOST_BUFFER_STORES` | `01` on this machine, or yours ([ADR 129]) |
| `SPS_RUN_PLATFORMS` | of `sps run`: the platforms that it has set for JAX |
| `SPS_JOB_NAME` | of `sps submit`: the job's name |
| `SPS_JOB_ATTEMPT` | of `sps submit`: the number of the attempt, from 1 |
| `SPS_JOB_ID` | of `sps submit`: the mark of the job's processes, which end with the attempt |
| `SPS_VERIFY_PROXY` | of `sps verify`: the proxy by which it cuts a tenant's connection |
| `SPS_RUN_NOTES` | of `sps run`: the file in which processes record whether they use the slices |

[ADR 145]: ../adr/0145-time-outs-come-from-one-table-and-adapt-to-the-machine.md
[ADR 129]: ../adr/0129-small-uploads-to-a-local-proxy-go-one-at-a-time.md
"""


def servers_text() -> str:
    """Returns the page of the servers."""
    parts = [_HEAD]
    for module, (options, what) in SERVERS.items():
        name = module.rpartition(".")[2].replace("_", " ")
        parts += [f"## {name[0].upper()}{name[1:]}", what, code(f"python -m {_PACKAGE}{module}")]
        parts.append(table(("flag", "takes", "default", "variable", "what"), _rows(options)))
    return page(parts)


def settings_text() -> str:
    """Returns the page of the settings."""
    about = dict(docstrings.attributes(settings.Settings))
    rows = []
    for field in dataclasses.fields(settings.Settings):
        missing = field.default is dataclasses.MISSING
        default = _DIRECTORIES.get(field.name, "") if missing else _shown(field.default)
        key = "" if field.name in ("config", "profile") else code(field.name)
        rows.append((code(f"SPS_{field.name.upper()}"), key, default, about[field.name]))
    limits = [
        (code(lim.variable), code(f"--{name}"), *split_default(lim.help))
        for name, lim in LIMITS.items()
    ]
    shown = table(("variable", "in a profile", "default", "what"), rows)
    bounds = table(("variable", "flag of a proxy", "what", "default"), limits)
    return page([_SETTINGS_HEAD, shown, _OTHERS.format(limits=bounds)])


_DIRECTORIES = {
    "runtime_dir": "`/tmp/sps-UID`; if that cannot be written, in the temporary directory",
    "state_dir": "the system's directory for a user's state, mostly "
    "`~/.local/state/shared-pathways-service`; if that cannot be written or is not UTF-8, "
    "`sps-UID-state` in the temporary directory",
    "cache_dir": "mostly `~/.cache/shared-pathways-service`; if that cannot be written or is not "
    "UTF-8, `sps-UID-cache` in the temporary directory",
    "config": "mostly `~/.config/shared-pathways-service/config.toml`",
}


def _flags(options: type) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(options):
        if "flag" in field.metadata:
            yield field.name, field.metadata["flag"]


def _rows(options: type) -> Iterator[tuple[str, ...]]:
    defaults = {field.name: field.default for field in dataclasses.fields(options)}
    for name, flag in _flags(options):
        shown = f"--{name}_*" if flag.is_prefix else f"--{name}"
        variables = " or ".join(code(variable) for variable in flag.env)
        text, default = split_default(flag.help)
        yield code(shown), _takes(flag), default or _shown(defaults[name]), variables, text


def _takes(flag: Any) -> str:
    """Returns the form of a flag's value, from the error of its parser."""
    if flag.is_switch:
        return ""
    return "text" if flag.is_prefix else _expected(flag.parse)


def _expected(parse: Callable[[str], object]) -> str:
    for wrong in ("-1", "\0"):
        try:
            parse(wrong)
        except InvalidRequestError as error:
            return error.expected
        except ValueError as error:
            return "a whole number" if parse is int else str(error)
    return "text"


def _shown(default: object) -> str:
    if default == socket.gethostname():
        return "this machine's name"
    if default is None or default in ("", ()) or default is False:
        return ""
    if isinstance(default, float):
        return "inf" if math.isinf(default) else f"{default:g}"
    if isinstance(default, tuple):
        return code(",".join("=".join(map(str, pair)) for pair in default))
    return code(default)
