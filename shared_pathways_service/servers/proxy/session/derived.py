"""Arrays that share others' memory, and arrays whose memory is donated to others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.devices.status_errors import invalid_argument
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.values import Spec, Value
from shared_pathways_service.servers.proxy.execution.virtual_slices import Epoch
from shared_pathways_service.servers.proxy.memory import Charge
from shared_pathways_service.servers.proxy.session.session import Session

__all__ = ["derive", "donate", "handles_for", "joined"]


def handles_for(named: Sequence[int], count: int) -> Sequence[int]:
    """Returns the handles that a request names, or zeros; it names all or none."""
    if not named:
        return [0] * count
    if len(named) != count:
        raise invalid_argument(f"{len(named)} handles for {count} arrays")
    return named


def derive(
    session: Session,
    name: str,
    inputs: Sequence[Value],
    specs: Sequence[Spec],
    run: Callable[[], Sequence[Any]],
    *,
    view_of: Value | None = None,
) -> list[Value]:
    """Makes values of the inputs' memory by `run`.

    If they are pieces of a value, unchanged, `view_of` names it; else each is one of its own
    placing's client.
    """
    outputs = [session.new_value(spec) for spec in specs]
    epochs: dict[Epoch, None] = {}
    for value in (*outputs, *inputs):
        value.shared = True
        epochs.update(dict.fromkeys(value.epochs))

    def run_and_share() -> Sequence[Any]:
        charges = _charges(inputs)
        for output in outputs:
            output.charge = charges
            if view_of is not None:
                output.client = view_of.client
        return run()

    engine = session.engine
    Operation(
        name,
        run_and_share,
        inputs=inputs,
        outputs=outputs,
        epochs=tuple(epochs),
        session_id=session.session_id,
        # (Nothing is copied, and nothing waits for the pieces of a value.)
        runner=lambda function: function() if view_of is not None else engine.run_soon(function, 0),
    ).start()
    return outputs


def _charges(values: Sequence[Value]) -> tuple[Charge, ...] | None:
    """Returns the charges of values on the devices' memory, each once, even for views of views."""
    found: dict[Charge, None] = {}
    for value in values:
        held = value.charge
        if held is not None:
            found.update(dict.fromkeys((held,) if isinstance(held, Charge) else held))
    return tuple(found) or None


def joined(spec: Spec, pieces: Sequence[tuple[Value, int]]) -> Any:
    """Returns one array of pieces of others, each a value and a number."""
    client = spec.placing.client
    parts = [value.parts()[number] for value, number in pieces]
    if all(value.client is client for value, _ in pieces):
        return client.join(spec, parts)
    return client.adopt(spec, parts)


def donate(
    session: Session, semantics: proxy_pb2.ArrayCopySemantics.ValueType, handles: Sequence[int]
) -> None:
    """Gives up arrays if their memory goes, or has gone, into others."""
    if semantics == proxy_pb2.ARRAY_COPY_SEMANTICS_DONATE_INPUT:
        for handle in handles:
            session.arrays[handle] = session.arrays[handle].tombstone()
