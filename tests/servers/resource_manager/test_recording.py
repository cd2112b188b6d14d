"""A real resource manager's events, recorded, exported, and run again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.processes import DEADLINE_S, KIND, Service, run_async
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import InvalidRequestError, PreflightError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling import event_log
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.messages import Tick
from shared_pathways_service.scheduling.book.persisted import Restored
from shared_pathways_service.servers.resource_manager import recording
from shared_pathways_service.servers.resource_manager.recording import Recording
from tests.servers.conftest import MakeService


def exported(service: Service) -> str:
    pages = service.stub.ExportLog(pb.ExportLogRequest(), wait_for_ready=True, timeout=DEADLINE_S)
    return "".join(page.text for page in pages)


def drive(service: Service, turn: int) -> None:
    """Lets tenants come, wait and go, and a worker die."""
    chance = random.Random(turn)
    names = [f"t{turn}-{n}" for n in range(4)]
    streams = [
        service.tenant(name, queue_timeout_s=600, virtual_slices=[KIND] * chance.randint(1, 2))
        for name in names
    ]
    for stream in streams:
        stream.expect("welcome")
    chance.shuffle(names)
    for name in names[:3]:
        service.stub.ReleaseTenant(pb.ReleaseTenantRequest(tenant=name, reason="done"))
    streams[chance.randrange(4)].close()


@pytest.mark.race
def test_a_driven_server_is_run_again_restarts_included(
    make_service: MakeService, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    service = make_service(f"--record_events={log}", "--tenant_ttl_s=0.2", "--recovering_s=0.2")
    service.start_ready_workers("slice-0")
    for turn in range(3):
        if turn == 1:
            service.start_ready_workers("slice-1").pop().kill()
            service.wait_for_states({"slice-1": "lost"})
        drive(service, turn)
        service.rm.kill()
        service.start_rm()
        service.wait_for_states({"slice-0": "ready"})
    text = exported(service)
    assert log.read_text().startswith(text)
    found = event_log.replay(text.splitlines())
    assert found.difference is None, found.difference
    assert found.epochs == 4
    assert found.decisions > 12


def test_without_a_file_a_young_server_can_tell(service: Service) -> None:
    service.start_ready_workers("slice-0")
    drive(service, 0)
    found = event_log.replay(exported(service).splitlines())
    assert found.difference is None, found.difference
    assert found.epochs == 1
    assert found.decisions > 3


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="--record_events"):
        Recording(str(tmp_path / "none" / "log"))


def test_a_moved_recording_is_still_exported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    kept = Recording(str(log))
    kept.begin(RmConfig(slices={InstanceType.parse(KIND): 1}), Restored(), 1.0)
    log.rename(tmp_path / "log.1")
    kept.add(Tick(), 2.0, ())

    async def export() -> str:
        return "".join([text async for text in kept.export()])

    text = run_async(export())
    kept.close()
    assert text == (tmp_path / "log.1").read_text()
    assert len(text.splitlines()) == 2


def test_half_a_line_from_before_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"at":1,')
    made = Recording(str(path))
    made.begin(RmConfig(slices={InstanceType.parse(KIND): 1}), Restored(), 1.0)
    made.close()
    assert path.read_text().splitlines()[0] == '{"at":1,'
    assert event_log.replay(path.read_text().splitlines()).epochs == 1


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_IN_MEMORY", 3)

    async def export(made: Recording) -> str:
        return "".join([piece async for piece in made.export()])

    made = Recording()
    made.begin(RmConfig(slices={InstanceType.parse(KIND): 1}), Restored(), 1.0)
    for _ in range(3):
        made.add(Tick(), 2.0, ())
    assert len(run_async(export(made)).splitlines()) == 4
    made.add(Tick(), 2.0, ())
    with pytest.raises(PreflightError, match="more than 3 events") as raised:
        run_async(export(made))
    assert "--record_events" in raised.value.hint
