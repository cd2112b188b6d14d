"""`sps cordon`, `drain` and `uncordon` on the embedded service."""

from __future__ import annotations

import dataclasses
import json

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.programs import DEADLINE_S, program, sps, sps_failing, sps_json, status
from shared_pathways_service.operations.slice_marks import MarkedSlice
from tests.cli.support import HOLDER


def test_a_slice_is_taken_out_its_holder_moved_and_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPS_PREEMPTION_GRACE_S", "0.5")
    with embedded(2):
        with program(HOLDER) as running:
            name = running.expect("holds")["name"]
            [held] = [one["id"] for one in status()["slices"] if one["tenant"]]
            [free] = [one["id"] for one in status()["slices"] if not one["tenant"]]

            assert sps_json("cordon", free) == {"slice": free, "state": "cordoned", "tenant": None}
            code, err = sps_failing("run", "--slices=tpuv6e:2x2=1", "--", "true")
            assert (code, "1 of 2 is cordoned" in err) == (125, True), err
            assert sps_json("cordon", held) == {"slice": held, "state": "cordoned", "tenant": name}
            stays = {"slice": held, "state": "draining", "tenant": name}
            assert sps_json("drain", held) == {**stays, "onto": None, "grace_s": None}
            text = sps("drain", held).stdout
            assert text == f"{held} is draining; {name} holds it until it ends\n"
            code, err = sps_failing("drain", held, "--wait=0.1")
            assert code == 3
            assert f"{name} still holds {held}" in err

            assert sps_json("uncordon", free) == {"slice": free, "state": "ready", "tenant": None}
            moved = sps_json("drain", held, f"--wait={DEADLINE_S}")
            gone = {"slice": held, "state": "cordoned", "tenant": None}
            # (By the time of the question it may have moved already.)
            onto, grace_s = moved.pop("onto"), moved.pop("grace_s")
            assert moved == gone
            assert (onto, grace_s) == (None, None) or (onto == free and 0 <= grace_s <= 0.5)
            slices = {one["id"]: (one["state"], one["tenant"]) for one in status()["slices"]}
            assert slices == {held: ("cordoned", None), free: ("ready", name)}
            kinds = [
                json.loads(line)["kind"] for line in sps("events", "--json").stdout.splitlines()
            ]
            assert kinds.index("slice.draining") < kinds.index("slice.unplaced")

            assert sps("uncordon", held).stdout == f"{held} is ready; it has no holder\n"
            running.tell("leave")
            running.expect("left")
        wait_until("the slice to be free", nothing_left)
        code, err = sps_failing("cordon", "slice-9")
        assert code == 2, err
        assert "slice-9" in err
        assert "slice-0" in err


def test_the_destination_of_a_holder_is_described() -> None:
    cordoned = MarkedSlice(slice_id="slice-1", state="cordoned", tenant="ada")
    assert cordoned.sentence == "slice-1 is cordoned; ada holds it"
    draining = dataclasses.replace(cordoned, state="draining", is_drained=True)
    assert draining.sentence == "slice-1 is draining; ada holds it until it ends"
    moving = dataclasses.replace(draining, onto="slice-2", grace_s=29.9971)
    assert moving.sentence == ("slice-1 is draining; ada holds it, and moves to slice-2 in 30.0 s")
    assert dataclasses.replace(moving, tenant="").sentence.endswith("it has no holder")
