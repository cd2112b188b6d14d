"""Writes `docs/protocol.md`: each request with its handler and its tests.

    scripts/protocol-table

`protocol.toml` has the facts that the code does not have. `test_protocol.py` checks that the page
is up to date.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.proxy.session.handlers import HANDLERS
from shared_pathways_service.servers.proxy.session.service import ProxyService

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[2] / "docs" / "protocol.md"
_PACKAGE = "shared_pathways_service.servers.proxy."

_HEAD = f"""\
# The proxy's support of JAX's proxy protocol

The clients in jaxlib 0.9 to 0.12 use versions {ifrt.PROTOCOL_MIN} to {ifrt.PROTOCOL_MAX} of the \
IFRT proxy protocol and
versions {ifrt.SERDES_MIN} to {ifrt.SERDES_MAX} of IFRT's serialised values. \
`scripts/protocol-table` writes this page from the code and
from `tests/servers/proxy/protocol.toml`. Tests are named relative to `tests/servers/proxy/`.
"""
_SERVED = """
## Served requests
*Since* is the version that introduced the request, if it is newer than the oldest one above.
"""
_NOT_SERVED = """
## Unserved requests
The proxy answers them with UNIMPLEMENTED and their name.
"""
_CALLS = """
## Calls outside the stream of requests
"""
_REFUSED = """
## Refused parts of requests
"""
_ANSWERS = """
## Answers
- If a request fails at once, the error is its answer, and every handle that the request named for
  its results holds the error. A later error is returned to each wait for the array, or for a value
  computed from it: `session/test_array_requests.py::{failed}`
- A request may name a *user context*, by which the client remembers the place in the user's program
  that made the request. The proxy returns each context once, with an answer
  (`destroyed_user_context_ids`), in the order of `seq_num`. Until then the client keeps half a
  kilobyte per execution:
  `session/test_protocol_contexts.py::{contexts}`
"""
_VERSIONS = """
## Versions
The changes of each version. The tests run JAX's client on each version, by a service that offers no
newer one.
"""
_ANSWER_TESTS = {
    "failed": "test_a_failed_request_leaves_its_error_in_its_handles",
    "contexts": "test_each_context_goes_back_once",
}


def facts() -> dict[str, Any]:
    """Reads `protocol.toml`."""
    return tomllib.loads((HERE / "protocol.toml").read_text())


def kinds() -> list[str]:
    """Returns the requests that there are, without ``_request``."""
    oneof = proxy_pb2.IfrtRequest.DESCRIPTOR.oneofs_by_name["request"]
    fields = sorted(oneof.fields, key=lambda field: field.number)
    return [field.name.removesuffix("_request") for field in fields]


def named_tests(known: dict[str, Any]) -> Iterator[str]:
    """Yields every test that is named."""
    for entry in (
        *known["requests"].values(),
        *known["calls"].values(),
        *known["refused"],
        *known["versions"],
    ):
        yield from entry["tests"]
    yield f"session/test_array_requests.py::{_ANSWER_TESTS['failed']}"
    yield f"session/test_protocol_contexts.py::{_ANSWER_TESTS['contexts']}"


def exists(test: str) -> bool:
    """Whether there is such a test."""
    if test.startswith("jax/test_jax.py["):
        name = test.removeprefix("jax/test_jax.py[").removesuffix("]")
        checks = (HERE.parents[2] / "harness/jax_checks").glob("*.py")
        # (A check is one by its decorator.)
        return any(f.name == name and f.decorator_list for path in checks for f in _functions(path))
    file, _, name = test.partition("::")
    return (HERE / file).exists() and any(f.name == name for f in _functions(HERE / file))


def _functions(path: Path) -> list[ast.FunctionDef]:
    tree = ast.parse(path.read_text())
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def text() -> str:
    """Returns the document."""
    known = facts()
    requests = known["requests"]
    served = [kind for kind in kinds() if f"{kind}_request" in HANDLERS]
    others = [kind for kind in kinds() if kind not in served]
    return "".join(
        (
            _HEAD,
            _SERVED,
            _table(
                ("request", "since", "what makes JAX send it", "handler", "tests"),
                (
                    (
                        f"`{kind}`",
                        str(requests[kind].get("since", "")),
                        requests[kind]["sent"],
                        _handler(kind),
                        _tests(requests[kind]),
                    )
                    for kind in served
                ),
            ),
            _NOT_SERVED,
            _table(
                ("request", "since", "what makes JAX send it", "reason", "the user sees", "tests"),
                (
                    (
                        f"`{kind}`",
                        str(requests[kind].get("since", "")),
                        requests[kind]["sent"],
                        requests[kind]["reason"],
                        requests[kind]["user_sees"],
                        _tests(requests[kind]),
                    )
                    for kind in others
                ),
            ),
            _CALLS,
            _table(
                ("call", "since", "what it does", "handler", "tests"),
                (
                    (
                        f"`{call}`",
                        str(entry.get("since", "")),
                        entry["does"],
                        f"`session.service.{getattr(ProxyService, entry['method']).__qualname__}`",
                        _tests(entry),
                    )
                    for call, entry in known["calls"].items()
                ),
            ),
            _REFUSED,
            _table(
                ("part", "reason", "the user sees", "tests"),
                (
                    (entry["part"], entry["reason"], entry["user_sees"], _tests(entry))
                    for entry in known["refused"]
                ),
            ),
            _ANSWERS.format(**_ANSWER_TESTS),
            _VERSIONS,
            _table(
                ("version", "change", "tests"),
                (
                    (str(entry["version"]), entry["change"], _tests(entry))
                    for entry in known["versions"]
                ),
            ),
        )
    )


def _handler(kind: str) -> str:
    function = HANDLERS[f"{kind}_request"]
    return f"`{function.__module__.removeprefix(_PACKAGE)}.{function.__name__}`"


def _tests(entry: dict[str, Any]) -> str:
    return ", ".join(f"`{test}`" for test in entry["tests"])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    DOCUMENT.write_text(text())
