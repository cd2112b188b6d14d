"""Makes the calls of `stress.jaxlib_entries` from a given one on, and reports each.

For each call a line is printed before it, with its number, and one after it.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from shared_pathways_service import isc_pathways
from stress.jaxlib_entries.signatures import Entry, entries
from stress.jaxlib_entries.values import Backend, is_of_a_backend

PROXY, CPU = "proxy", "cpu"
#: Of the calls of an entry, with each mixture of backends.
_MOST_MIXTURES = 16


def main() -> None:
    """Connects, and makes the calls."""
    first = int(sys.argv[1])
    with isc_pathways.connect():
        # (JAX is to start inside of the connection.)
        import jax
        import jax.experimental.transfer

        cpu = jax.local_devices(backend=CPU)[0]
        backends = {PROXY: Backend(jax.devices()[0]), CPU: Backend(cpu)}
        server = _transfer_server(cpu.client)
        owners = {
            "TransferServer": server,
            "TransferConnection": server and server.connect(server.address()),
        }
        for number, (entry, mixture, is_short) in enumerate(_calls()):
            if number >= first:
                _call(number, entry, mixture, is_short, backends, owners)
    _say(what="all", calls=number + 1)


def _calls() -> Iterator[tuple[Entry, Sequence[str], bool]]:
    for entry in entries():
        own = [one for one in entry.parameters if is_of_a_backend(one)]
        mixtures = itertools.product((PROXY, CPU), repeat=len(own))
        for mixture in itertools.islice(mixtures, _MOST_MIXTURES):
            if PROXY in mixture:
                # With all arguments; and with defaults.
                yield entry, mixture, False
                if not all(one.is_needed for one in entry.parameters):
                    yield entry, mixture, True


def _call(
    number: int,
    entry: Entry,
    mixture: Sequence[str],
    is_short: bool,
    backends: dict[str, Backend],
    owners: dict[str, Any],
) -> None:
    kinds = iter(mixture)
    arguments: list[Any] = []
    named: dict[str, Any] = {}
    for one in entry.parameters:
        backend = backends[next(kinds) if is_of_a_backend(one) else mixture[0]]
        if is_short and not one.is_needed:
            continue
        value = owners.get(one.type) if one.name == "self" else None
        value = backend.argument(one) if value is None else value
        if one.is_named:
            named[one.name] = value
        else:
            arguments.append(value)
    text = f"{entry.path}({', '.join(mixture)}){' with defaults' if is_short else ''}"
    _say(what="call", number=number, entry=entry.path, text=text, signature=entry.signature)
    try:
        repr(entry.call(*arguments, **named))
    except Exception as error:  # noqa: BLE001 - whatever it is, it was raised
        is_reached = "incompatible function arguments" not in str(error)
        _say(what="raised" if is_reached else "not reached", error=f"{error!r:.300}")
    else:
        _say(what="returned")


def _transfer_server(client: Any) -> Any:
    """Returns a server of this machine's arrays; None: this jaxlib has none."""
    from jaxlib import _jax

    start = getattr(_jax, "start_transfer_server", None)
    return start and start(client, "127.0.0.1:0", ["127.0.0.1:0"])


def _say(**data: object) -> None:
    print(json.dumps(data), flush=True)


if __name__ == "__main__":
    main()
