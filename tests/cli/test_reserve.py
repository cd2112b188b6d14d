"""`sps reserve`, `reservations` and `unreserve` on the embedded service."""

from __future__ import annotations

import getpass
import json

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.programs import program, sps, sps_failing, sps_json
from shared_pathways_service.cli.display.moments import parse_coming
from shared_pathways_service.errors import InvalidRequestError
from tests.cli.support import HOLDER

KIND = "tpuv6e:2x2"


def test_slices_are_kept_for_their_owner_alone() -> None:
    with embedded(1):
        made = sps_json("reserve", f"{KIND}=1", "--for-team", "vision", "--until", "in 1h")
        assert (made["count"], made["team"], made["user"], made["held"]) == (1, "vision", None, 0)
        assert sps_json("reservations") == [made]
        code, err = sps_failing("run", f"--slices={KIND}=1", "--", "true")
        assert code == 125
        assert "1 is reserved for team vision until" in err
        assert f"reserved {made['id']}: 1 x {KIND} for team vision from" in sps("status").stdout
        assert f"reserved {made['id']}: 1 x" in sps("top", "--once").stdout

        code, err = sps_failing("reserve", f"{KIND}=1", "--for-user", "ada", "--until", "2h")
        assert code == 2, err
        assert f"{made['id']}: 1 for team vision from" in err
        later = sps("reserve", f"{KIND}=1", "--for-user", "ada", "--from", "2h", "--until", "3h")
        assert f": 1 x {KIND} for user ada from " in later.stdout
        listed = sps("reservations").stdout.splitlines()
        assert [line.split()[0] for line in listed[1:]] == [
            made["id"],
            later.stdout.partition(":")[0],
        ]
        second = later.stdout.partition(":")[0]
        assert sps_json("unreserve", second) == {"id": second, "cancelled": True}
        assert sps("unreserve", made["id"]).stdout == f"{made['id']} is cancelled\n"
        assert sps_failing("unreserve", made["id"])[0] == 2

        mine = sps_json("reserve", f"{KIND}=1", "--for-user", getpass.getuser(), "--until", "1h")
        with program(HOLDER) as running:
            running.expect("holds")
            assert [one["held"] for one in sps_json("reservations")] == [1]
            running.tell("leave")
            running.expect("left")
        wait_until("the slice to be free", nothing_left)
        kinds = [json.loads(one)["kind"] for one in sps("events", "--json").stdout.splitlines()]
        assert kinds.count("reservation.made") == 3
        assert kinds.count("reservation.ended") == 2
        assert mine["user"] == getpass.getuser()


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("tpuv6e:2x2", "--for-user", "a", "--until", "1h"), "TYPE=COUNT"),
        (("tpuv6e:2x2=1,tpuv5e:2x2=1", "--for-user", "a", "--until", "1h"), "TYPE=COUNT"),
        (("tpuv6e:2x2=1", "--until", "1h"), "--for-user"),
        (("tpuv6e:2x2=1", "--for-user", "a", "--for-team", "b", "--until", "1h"), "--for-user"),
        (("tpuv6e:2x2=1", "--for-user", "a", "--until", "tomorrow"), "--until"),
    ],
)
def test_wrong_words_are_named_before_anything_is_asked(words: tuple[str, ...], field: str) -> None:
    code, err = sps_failing("reserve", *words)
    assert code == 2, err
    assert field in err


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("in 2h", -7200.0),
        ("2h", -7200.0),
        ("now", 0.0),
        ("90", -90.0),
        ("2001-09-09T01:46:40Z", 1e9),
        ("2001-09-09T03:46:40+02:00", 1e9),
    ],
)
def test_moments_to_come(text: str, moment: float) -> None:
    assert parse_coming("--from", text) == moment


def test_an_invalid_moment_is_refused_with_valid_examples() -> None:
    with pytest.raises(InvalidRequestError, match="in 2h"):
        parse_coming("--from", "soon")
