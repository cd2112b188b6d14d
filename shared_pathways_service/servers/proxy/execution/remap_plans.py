"""Plans that make arrays from other arrays' shards, without a copy: IFRT's RemapPlan.

A plan states in one of two ways where each shard goes. Up to version 5 of IFRT's serialised values
`mappings` has intervals of shards; from version 6 on `input_devices_for_output` has the devices
whose shards an output takes from each input. Clients of versions 4 and 5 send both.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Sequence

from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import StatusError, invalid_argument
from shared_pathways_service.servers.proxy.execution.values import Spec, Value

__all__ = ["pieces_of"]

#: Which shard of which input becomes which shard of which output.
_Move = tuple[int, int, int, int]
_Plan = core_pb2.RemapPlanProto


def pieces_of(
    plan: _Plan, values: Sequence[Value], specs: Sequence[Spec]
) -> list[list[tuple[int, int]]]:
    """Returns, for each output and each of its devices, which piece of which input it takes.

    Raises:
      StatusError: The plan names unknown arrays or shards, moves a shard to another device, or does
        not fill each shard of the outputs exactly once.
    """
    inputs = [value.known_spec() for value in values]
    found: list[list[tuple[int, int] | None]] = [
        [None] * len(spec.placing.device_ids) for spec in specs
    ]
    given_by_devices = {entry.out_array for entry in plan.input_devices_for_output}
    moves = itertools.chain(
        _by_devices(plan, inputs, specs), _by_intervals(plan, inputs, specs, given_by_devices)
    )
    for in_array, source, out_array, place in moves:
        devices = inputs[in_array].placing.device_ids
        target = specs[out_array].placing.device_ids
        if devices[source] != target[place]:
            raise _wrong("moves a shard to another device")
        # (So no plan has more moves than there are shards.)
        if found[out_array][place] is not None:
            raise _wrong(f"fills shard {place} of output {out_array} more than once")
        found[out_array][place] = (in_array, source)
    complete = [[piece for piece in row if piece is not None] for row in found]
    if list(map(len, complete)) != list(map(len, found)):
        raise _wrong("leaves shards out")
    return complete


def _by_devices(plan: _Plan, inputs: Sequence[Spec], specs: Sequence[Spec]) -> Iterator[_Move]:
    for entry in plan.input_devices_for_output:
        for taken in entry.input_devices:
            _check_pair(inputs, taken.in_array, specs, entry.out_array)
            sources = _places(inputs[taken.in_array])
            places = _places(specs[entry.out_array])
            for device in taken.device_list.device_ids:
                if device not in sources or device not in places:
                    raise _wrong("names absent shards")
                yield taken.in_array, sources[device], entry.out_array, places[device]


def _places(spec: Spec) -> dict[int, int]:
    return {device: place for place, device in enumerate(spec.placing.device_ids)}


def _by_intervals(
    plan: _Plan, inputs: Sequence[Spec], specs: Sequence[Spec], given_by_devices: Container[int]
) -> Iterator[_Move]:
    """Yields the moves to outputs that are not in `given_by_devices`."""
    for mapping in plan.mappings:
        _check_pair(inputs, mapping.in_array, specs, mapping.out_array)
        if mapping.out_array in given_by_devices:
            continue
        num_sources = len(inputs[mapping.in_array].placing.device_ids)
        num_places = len(specs[mapping.out_array].placing.device_ids)
        for source, place in _steps(mapping, num_sources, num_places):
            yield mapping.in_array, source, mapping.out_array, place


def _steps(
    mapping: _Plan.MappingProto, num_sources: int, num_places: int
) -> Iterator[tuple[int, int]]:
    """Yields which shard of the one array becomes which of the other."""
    try:
        for start, end, step, to_start, to_end, to_step in zip(
            mapping.from_start, mapping.from_end, mapping.from_step,
            mapping.to_start, mapping.to_end, mapping.to_step, strict=True,
        ):  # fmt: skip
            if step < 1 or to_step < 1:
                raise _wrong("has a step below 1")
            # (Before the intervals are expanded: they may name any number of shards.)
            if start < 0 or end > num_sources or to_start < 0 or to_end > num_places:
                raise _wrong("names absent shards")
            yield from zip(range(start, end, step), range(to_start, to_end, to_step), strict=True)
    except ValueError as error:
        raise _wrong("has source and target intervals of different numbers or lengths") from error


def _check_pair(
    inputs: Sequence[Spec], in_array: int, specs: Sequence[Spec], out_array: int
) -> None:
    if not (0 <= in_array < len(inputs) and 0 <= out_array < len(specs)):
        raise _wrong("names absent arrays")
    source, target = inputs[in_array].piece, specs[out_array].piece
    if source != target:
        raise _wrong(f"makes shards of {target} from shards of {source}")


def _wrong(what: str) -> StatusError:
    return invalid_argument(f"the remap plan {what}")
