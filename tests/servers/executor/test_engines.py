"""What both engines of executors do: XLA's, and the one that computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from harness.proxy.null_engine import NullEngine
from harness.proxy.programs import DOUBLE, compile_options, sharded_double
from harness.proxy.raw import F32, single, split
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.executor.executor_engine import Client, Engine
from shared_pathways_service.servers.executor.opened_clients import XlaEngine

DEVICES = (0, 1, 2, 3)
ENGINES: Mapping[str, Callable[[], Engine]] = {
    "xla": lambda: XlaEngine(4, "127.0.0.1"),
    "null": NullEngine,
}


@pytest.fixture(params=ENGINES)
def client(request: pytest.FixtureRequest) -> Client:
    """Of four devices, all here."""
    engine: Engine = ENGINES[request.param]()
    engine.bound_collectives(60)
    return engine.open(pb.OpenClient(devices=DEVICES, own=DEVICES))


def spec(size: int, sharding: core_pb2.ShardingProto) -> pb.ExecutorArraySpec:
    return pb.ExecutorArraySpec(kind=F32, shape=[size], sharding=sharding.SerializeToString())


def shards(values: Sequence[float], count: int) -> list[bytes]:
    return [part.tobytes() for part in np.split(np.array(values, np.float32), count)]


def put_split(client: Client) -> object:
    return client.put(spec(8, split(DEVICES)), shards(range(8), 4))


def test_arrays_keep_their_bytes_split_and_joined(client: Client) -> None:
    array = put_split(client)
    assert client.fetch(array) == shards(range(8), 4)
    parts = client.split(array)
    assert [client.fetch(part) for part in parts] == [[data] for data in shards(range(8), 4)]
    for method in ("join", "copy"):
        made = client.make(method, pb.MakeArray(spec=spec(8, split(DEVICES))), parts)
        assert client.fetch(made) == shards(range(8), 4)


@pytest.mark.parametrize(
    ("text", "devices", "result"),
    [(sharded_double(4), DEVICES, spec(8, split(DEVICES))), (DOUBLE, (2,), spec(4, single(2)))],
)
def test_results_have_the_programs_shape(
    client: Client, text: str, devices: Sequence[int], result: pb.ExecutorArraySpec
) -> None:
    program = compiled(client, text, devices)
    assert not program.spans_hosts
    size = result.shape[0]
    given = shards([0] * size, len(devices))
    argument = client.put(result, given)
    (made,) = client.run(client.runner(program, [result], is_quick=True), [argument])
    # (Twice zero: what the null engine always gives.)
    assert client.fetch(made) == given


def test_the_null_engine_knows_shardings_as_xla_does() -> None:
    found = []
    for make in ENGINES.values():
        client = make().open(pb.OpenClient(devices=DEVICES, own=DEVICES))
        facts = client.facts(compiled(client, sharded_double(4), DEVICES))
        for own in ("name", "fingerprint", "memory", "code_bytes"):
            facts.ClearField(own)
        found.append(facts)
    assert found[0] == found[1]


def compiled(client: Client, text: str, devices: Sequence[int]) -> Any:
    options = core_pb2.XlaCompileOptionsProto.FromString(compile_options(devices))
    return client.compile(
        pb.CompileProgram(text=text.encode(), options=options.compile_options, devices=devices)
    )
