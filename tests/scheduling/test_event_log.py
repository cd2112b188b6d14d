"""A log of events, run again: the same decisions, or the first that differ."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from typing import Any

import pytest

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.events.proxy import MemoryNearLimit
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.persisted import PersistedGrant
from shared_pathways_service.scheduling.book.plain import from_plain, to_plain
from shared_pathways_service.scheduling.event_log import (
    decisions_of,
    epoch_line,
    event_line,
    replay,
)
from tests.scheduling.harness import OTHER, SMALL, Rm, events_of
from tests.scheduling.machines import begun


class RecordedRm(Rm):
    """A service whose events are recorded as the server does."""

    def __init__(self, *args: Any, lines: list[str] | None = None, **kwargs: Any) -> None:
        self.lines: list[str] = [] if lines is None else lines
        super().__init__(*args, **kwargs)

    def do(self, event: m.ResourceManagerEvent) -> list[m.Instruction]:
        if not getattr(self, "began", False):
            self.began = True
            # (A core that has handled nothing yet has what it was made with.)
            self.lines.append(epoch_line(self.config, self.restored, self.now, "0"))
        said = super().do(event)
        self.lines.append(event_line(event, self.now, decisions_of(said)))
        return said


def driven(steps: int = 120, seed: int = 1) -> RecordedRm:
    """Returns a service to which all sorts of things have happened, restarts included."""
    chance = random.Random(seed)
    rm = RecordedRm({SMALL: 3, OTHER: 2}, spares=1)
    number = 0
    for _ in range(steps):
        names = rm.tenants
        match chance.randrange(7):
            case 0 | 1:
                number += 1
                wants = (SMALL,) * chance.randint(1, 2) + (OTHER,) * chance.randint(0, 1)
                queue = chance.choice([None, 5.0, math.inf])
                rm.ask(
                    f"t{number}",
                    wants,
                    elastic=chance.randint(0, 1) and len(wants) - 1,
                    priority=chance.randint(0, 1),
                    queue=queue,
                )
            case 2 if names:
                rm.release(chance.choice(names))
            case 3 if names:
                rm.cut(chance.choice(names))
            case 4:
                rm.end_worker("slice-0")
                rm.join("slice-0")
            case 5:
                rm.after(chance.choice([0.5, 6.0, 40.0]))
            case 6 if not chance.randrange(4):
                lines = rm.lines
                config = {f.name: getattr(rm.config, f.name) for f in dataclasses.fields(rm.config)}
                asked = rm.asked
                rm = RecordedRm(
                    ready=chance.random() < 0.7,
                    restored=rm.restored,
                    now=rm.now + 1,
                    lines=lines,
                    **config,
                )
                rm.asked = asked
    return rm


@pytest.mark.parametrize("seed", range(5))
def test_what_was_recorded_is_decided_again(seed: int) -> None:
    lines = driven(seed=seed).lines
    found = replay(lines)
    assert found.difference is None
    assert found.epochs == sum("epoch" in json.loads(line) for line in lines) > 0
    assert found.events == len(lines) - found.epochs
    assert found.decisions > 20


def test_the_first_difference_is_reported() -> None:
    lines = driven().lines
    number = next(i for i, line in enumerate(lines) if '"slice.placed"' in line)
    lines[number] = lines[number].replace("slice.placed", "slice.claimed", 1)
    found = replay(lines)
    assert found.difference is not None
    assert found.difference.line == number + 1
    assert any("was believed to hold" in one for one in found.difference.recorded)
    assert any("was placed on" in one for one in found.difference.made)


def test_a_missing_event_is_a_difference() -> None:
    lines = driven().lines
    number = next(i for i, line in enumerate(lines) if '"TenantAsked"' in line)
    del lines[number]
    assert replay(lines).difference is not None


def test_half_a_line_ends_an_epoch_and_nothing_else() -> None:
    lines = driven().lines
    epoch, *rest = lines[:30]
    assert replay([epoch, *rest, rest[-1][:20]]).torn == 1
    assert replay([epoch, rest[0][:20], epoch, *rest]).torn == 1
    with pytest.raises(ValueError, match="line 3"):
        replay([epoch, rest[0][:20], *rest])


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        ([], "no epoch begins"),
        (["[]"], "line 1: no line of a log"),
        (['{"event":"Tick","at":1,"fields":{}}'], "an event before the first epoch"),
        (['{"epoch":99}'], "format 99"),
        (['{"epoch":1}'], "line 1"),
    ],
)
def test_what_is_no_log_is_refused(lines: list[str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replay(lines)


def test_all_that_goes_in_is_the_same_after_json() -> None:
    rm = driven()
    for value in (rm.restored, rm.config, *rm.asked.values()):
        data = json.loads(json.dumps(to_plain(value), allow_nan=False))
        assert from_plain(type(value), data) == value
    with pytest.raises(ValueError, match="TenantAsked"):
        from_plain(m.TenantAsked, {"colour": "red"})


def test_a_log_of_the_first_format_is_replayed() -> None:
    lines = [line.replace('{"epoch":2,', '{"epoch":1,') for line in driven().lines]
    assert lines[0].startswith('{"epoch":1,')
    assert replay(lines).difference is None


def test_the_first_format_has_the_fields_of_a_request_beside_others() -> None:
    request = TenantRequest(
        name="ada",
        virtual_slices=(SMALL, OTHER),
        elastic_slices=1,
        priority=-3,
        queue_timeout_s=math.inf,
        user="ada",
        team="t",
        host="h",
    )
    fields = {
        "tenant": "ada",
        "incarnation": "i-1",
        "virtual_slices": [str(SMALL), str(OTHER)],
        "num_elastic": 1,
        "priority": -3,
        "queue_timeout_s": "inf",
        "user": "ada",
        "team": "t",
        "host": "h",
        "pid": 7,
    }
    asked = from_plain(m.TenantAsked, {**fields, "max_lifetime_s": 9.0})
    assert asked == m.TenantAsked(
        request=dataclasses.replace(request, max_lifetime_s=9.0), incarnation="i-1", pid=7
    )
    grant = {"order": 1, "running": True, "placements": {"0": ["s", 5]}, "asked_at": 1.0}
    assert from_plain(PersistedGrant, {**fields, **grant}) == PersistedGrant(
        request, "i-1", 7, order=1, running=True, placements={0: ("s", 5)}, asked_at=1.0
    )


def test_an_event_of_a_proxy_is_announced_recorded_and_replayed() -> None:
    rm = RecordedRm(1)
    rm.ask("ada")
    near = {"kind": "proxy.memory_near_limit", "source": "proxy", "tenant": "ada", "reason": "full"}
    for incarnation in ("another", rm.asked["ada"].incarnation):
        rm.said.clear()
        rm.do(m.ProxyReported(tenant="ada", incarnation=incarnation, event=json.dumps(near)))
        [*events] = events_of(rm.said)
    assert events == [MemoryNearLimit(tenant="ada", reason="full")]
    [decision] = decisions_of(rm.said)
    assert (decision.kind, decision.tenant, decision.reason) == (near["kind"], "ada", "full")
    result = replay(rm.lines)
    assert result.difference is None
    assert result.events == len(rm.lines) - 1


def test_what_one_tenant_was_told_is_not_told_to_one_of_lower_priority() -> None:
    machine = begun(spares=1, first_start=False)
    machine.ask((SMALL,), queue_timeout=math.inf)
    machine.all_workers_are_back()
    machine.manager_restarts(all_return=False, lose_disk=False)
    machine.ask((SMALL, SMALL), elastic=1, priority=1, queue_timeout=math.inf)
    machine.trouble(machine.held[0], "cut")
    machine.all_proxies_are_back()
    refused = machine.ask((SMALL, SMALL), elastic=1).refused
    assert refused is not None
    # (The one before it may preempt the holder of the only slice that is ready.)
    assert "1 more slice of tpuv6e:2x2 has to become ready" in refused.message
    machine.teardown()  # which replays all
