"""Time-outs are in one table, and tests do not replace them (ADR 145)."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.patience.slowness import MOST
from tests.patience.assignments import assigned

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = "shared_pathways_service"
#: What may use a time-out, and what may not replace one.
_USERS = (_PACKAGE, "tests", "harness", "stress", "benchmarks", "conformance")

#: How names of seconds end that are no time-outs: intervals, pauses between tries, and ages.
_NO_TIMEOUT = (
    *("_INTERVAL_S", "_EVERY_S", "_POLL_S", "_LOOK_S", "_PAUSE_S", "_DELAY_S", "_RETRY_S"),
    *("_BACKOFF_S", "_KEPT_S", "_AGE_S", "_AFTER_S", "_PER_S", "_HOUR_S"),
)
#: Where seconds are something else altogether: the table, what several processes agree on, fields
#: of objects of Kubernetes, and periods of the scheduler's book.
_OTHER_SECONDS = ("constants", "manifests/", "patience/", "scheduling/", "testing/")
#: Fields with a default that users can give or that both sides of a protocol know, by their class.
#: (Those that a flag makes are options anyway.)
_OPTIONS: Mapping[str, Collection[str]] = {
    # --trace_s of a proxy, the longest profile.
    "api/proxy_limits: ProxyLimits": {"trace_s"},
    "cli/options/run_options: RunOptions": {"timeout"},
    # Of elastic training, in its documentation.
    "elastic/policy/options: Options": {
        *("elastic_timeout_seconds", "probe_timeout", "health_timeout", "busy_timeout")
    },
    "operations/disruptions: ChaosOptions": {"mtbf_s", "down_for_s"},
    # --request_timeout_s and --slow_reader_s of a proxy, of which these are the defaults.
    "servers/proxy/limits: Limits": {"request_timeout_s", "slow_reader_s"},
    # How long a link's session is kept: keep_for= of a service, or --link_keep_s.
    "tunnel/link/far_end: FarOptions": {"keep_s"},
    "tunnel/link/near_end: NearOptions": {"keep_s", "early_from_s"},
}
#: An assignment to an entry of the table.
_ASSIGNED = re.compile(r"\btimeouts\.[A-Z_]+(\.seconds)? = ")
#: The factor that a text sets for other processes, or for its own.
_FACTOR = re.compile(r"""SPS_PATIENCE["'\]]*\s*[,:=]\s*["']?([\d.]+)""")
#: How tests wait for a longer or a shorter time.
_SET = "SPS_PATIENCE (harness/patience.py), or pass a Timeout"
#: Other seconds that are no time-outs, by their module.
_NOT_TIMEOUTS: Mapping[str, Collection[str]] = {
    "cluster_state/pods": {"_CLOCK_SLACK_S"},  # clocks differ by so much
    "web/identity/assertions": {"_CLOCK_SLACK_S"},
    "flags/policies": {"_WARNING_S"},  # the default of an option
    "jax_client/attachment": {"_LEAST_S"},
    "jax_client/plugin/plugin": {"_SOON_S", "_FIRST_ATTEMPT_S", "_LONGEST_ATTEMPT_S"},
    "kube/auth_provider": {"_MARGIN_S"},  # of an expiry
    "kube/retry_rules": {"_FIRST_S", "_LONGEST_S", "_LONGEST_ASKED_S"},  # pauses
    "kube/single_requests": {"_READY_FOR_S"},  # what is known is valid for so long
    "kube/tokens": {"_MARGIN_S"},
    "operations/disruptions": {"_LONGEST_DOWN_S"},  # the limit of an option
    "rmclient/blocking_stream": {"_SOON_S"},
    "runtime/backoff": {"_FIRST_S", "_LONGEST_S"},
    "runtime/setting_readers": {"_SHORTEST_DEADLINE_S"},  # the limit of an option
    "servers/executor/executor_service": {"PATIENCE_S"},  # gathers messages
    "servers/proxy/callbacks/callbacks": {"_PATIENCE_S", "_ORDER_S", "LATE_S"},  # order, logging
    "servers/proxy/execution/in_flight": {"_BRIEF_S", "_LONG_S"},  # lengths of programs
    "servers/proxy/executors/executors": {"_FREED_WAIT_S"},  # gathers messages
    "servers/proxy/executors/run_comparison": {"_LEAST_S", "_HALF_LIFE_S"},  # lengths of programs
    "servers/proxy/transport/late_requests": {"_ROUND_S"},  # an interval
    # Defers time-outs that several processes agree on (ADR 42).
    "servers/resource_manager/patience": {
        *("_STALLED_S", "_CATCH_UP_S", "_HELD_S", "_COMING_S", "_COMING_MOST_S")
    },
    "servers/resource_manager/steady_clock": {"_SET_BACK_S"},
    "servers/serving/listening": {"STOP_S"},  # less than the grace period of a pod
    "servers/supervisor/proxy_requests": {"_LONGEST_HOLD_S"},  # the limit of an option
    "servers/supervisor/restarts": {"SETTLED_S"},
    "servers/worker/manager_session": {"_LATE_S"},  # logging
    # XLA's service and its clients in other processes agree on these: jaxlib gets them as numbers.
    "servers/xla/coordination": {"JOIN_S", "_HEARTBEAT_S", "_SHUTDOWN_S"},
    "servers/xla/host_platforms": {"_TERMINATE_S"},  # beyond what a user allows a collective
    "session/cloud_metrics": {"SPACING_S", "REPEAT_S"},
    "tunnel/link/link_end": {"_ACK_S", "_ASLEEP_S"},  # gathers messages; a stall
    # Delays that are measured, and what they are measured over.
    "tunnel/link/pacing": {
        *("_BASE_S", "_GROW_S", "_SHRINK_S", "_LONG_WAY_S"),
        *("_RATE_S", "_BUSY_S", "_MEASURED_S", "_IDLE_S"),
    },
    "tunnel/link/windows": {"_RATE_S"},
    "tunnel/pump: PumpTimes": {"ping_s"},  # an interval
    "web/identity/signing_keys": {"_LONGEST_S"},  # the age of keys
    "web/page_server": {"_LONGEST_S"},  # of a history
    "web/page_state": {"_ROUNDING_S"},
    "web/slice_history": {"_SAME_EVENT_S"},
}


def timeout_errors(root: Path, package: str, known: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yields a line for each constant of seconds that is a time-out outside of the table."""
    unneeded = {f"{where}: {name}" for where, names in known.items() for name in names}
    for path in sorted((root / package).rglob("*.py")):
        module = path.relative_to(root / package).with_suffix("").as_posix()
        if module.startswith(_OTHER_SECONDS):
            continue
        for where, name in _numbers_of(ast.parse(path.read_text()), module):
            if not _names_a_timeout(name):
                continue
            unneeded.discard(f"{where}: {name}")
            if name not in known.get(where, ()):
                yield f"{where}: {name} is a time-out: it belongs into patience/timeouts.py"
    for name in sorted(unneeded):
        yield f"{name} is gone: remove it from _NOT_TIMEOUTS or _OPTIONS"


def _names_a_timeout(name: str) -> bool:
    is_one = name.upper().endswith("_S") or "timeout" in name.lower()
    return is_one and not f"_{name.upper()}".endswith(_NO_TIMEOUT)


def _numbers_of(tree: ast.AST, module: str) -> Iterator[tuple[str, str]]:
    """Yields the constants that are numbers: where, and their names.

    They are those of the module, and those of classes, as defaults of fields are; there 0 is none.
    """
    for node in ast.iter_child_nodes(tree):
        yield from ((module, name) for name, value in assigned(node) if _is_number(value))
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for name, value in (pair for line in node.body for pair in assigned(line)):
            if _is_number(value) and ast.unparse(value) not in ("0", "0.0"):
                yield f"{module}: {node.name}", name


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) or _is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def replaced_timeouts(root: Path, folders: Iterable[str]) -> Iterator[str]:
    """Yields a line for each place that replaces something in the table of time-outs."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text()
            if "timeouts" not in text:
                continue
            lines = [
                node.lineno
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Call) and _replaces_timeouts(node)
            ]
            # (Also in programs, which are texts.)
            lines += [text[: found.start()].count("\n") + 1 for found in _ASSIGNED.finditer(text)]
            for line in lines:
                yield f"{path.relative_to(root)}:{line} replaces a time-out: set {_SET}"


def _replaces_timeouts(call: ast.Call) -> bool:
    if ast.unparse(call.func).rpartition(".")[2] not in ("setattr", "patch", "object"):
        return False
    return any("timeouts" in ast.unparse(argument) for argument in call.args[:1])


def too_large_factors(root: Path, folders: Iterable[str]) -> Iterator[str]:
    """Yields a line for each place that sets a factor which no process measures."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text()
            if "patience" not in text.lower():
                continue
            lines = {
                text[: found.start()].count("\n") + 1
                for found in _FACTOR.finditer(text)
                if float(found[1]) > MOST
            }
            lines |= {
                node.lineno
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Call) and _sets_too_much(node)
            }
            for line in sorted(lines):
                yield f"{path.relative_to(root)}:{line}: users have a factor of at most {MOST}"


def _sets_too_much(call: ast.Call) -> bool:
    """Whether a call of `patience` has a number anywhere in its arguments that is too large."""
    if ast.unparse(call.func).rpartition(".")[2] != "patience":
        return False
    return any(
        isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value > MOST
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for node in ast.walk(argument)
    )


def test_every_time_out_of_the_package_is_in_the_table() -> None:
    assert list(timeout_errors(_ROOT, _PACKAGE, {**_NOT_TIMEOUTS, **_OPTIONS})) == []


def test_no_test_replaces_a_time_out() -> None:
    assert list(replaced_timeouts(_ROOT, _USERS)) == []


def test_no_test_is_more_patient_than_users() -> None:
    assert list(too_large_factors(_ROOT, _USERS)) == []


def test_every_time_out_is_used() -> None:
    table = {name for name, value in vars(timeouts).items() if isinstance(value, Timeout)}
    used = {
        node.attr
        for path in (_ROOT / _PACKAGE).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "timeouts"
    }
    assert table == used


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("_ANSWER_S = 5.0", True),
        ("_ANSWER_S: Final = 2 * 60", True),
        ("_FIRST, _ANSWER_S = 1, 5.0", True),
        ("_POLL_S = 0.1", False),
        ("_RETRY_INTERVAL_S = 5.0", False),
        ("ANSWERS = 5", False),
        ("_ANSWER_S = timeouts.ANSWER.seconds", False),
        ("_ANSWER_TIMEOUT = 5.0", True),
    ],
)
def test_a_time_out_elsewhere_is_found(source: str, *, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    (tmp_path / "tried" / "one.py").write_text(source)
    found = list(timeout_errors(tmp_path, "tried", {}))
    assert bool(found) is is_found
    assert all("one: _ANSWER_" in line for line in found)


@pytest.mark.parametrize(
    ("field", "is_found"),
    [
        ("answer_s: float = 5.0", True),
        ("answer_s = 2 * 60", True),
        ("answer_timeout: float = 5", True),
        ("answer_s: float = 0.0", False),
        ("answer_s: float", False),
        ("poll_s: float = 0.1", False),
        ("answers: int = 5", False),
        ("answer: Timeout = timeouts.ANSWER", False),
        ("answer_s: float = flag(5.0, parse=seconds)", False),
    ],
)
def test_a_time_out_in_a_class_is_found(field: str, *, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    (tmp_path / "tried" / "one.py").write_text(f"class One:\n    class Two:\n        {field}\n")
    found = list(timeout_errors(tmp_path, "tried", {}))
    name = field.replace(":", " ").split()[0]
    place = f"one: Two: {name}"
    assert [line.partition(" is a")[0] for line in found] == [place] * is_found
    assert list(timeout_errors(tmp_path, "tried", {"one: Two": {name}} if is_found else {})) == []


def test_an_exception_without_need_is_found(tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    (tmp_path / "tried" / "one.py").write_text("_A_S = 5.0\n")
    known = {"one": {"_A_S", "_B_S"}}
    found = list(timeout_errors(tmp_path, "tried", known))
    assert found == ["one: _B_S is gone: remove it from _NOT_TIMEOUTS or _OPTIONS"]


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ('monkeypatch.setattr(timeouts, "GIT", Timeout(1.0))', True),
        ('patched.setattr("package.patience.timeouts.GIT", 1)', True),
        ('mock.patch.object(patience.timeouts, "GIT")', True),
        ('monkeypatch.setattr(module, "_PAUSE_S", 0.0)', False),
        ('monkeypatch.setenv("SPS_PATIENCE", "0.1")', False),
        ("timeouts" + ".GIT = Timeout(1.0)", True),
        ("run(timeouts.GIT)", False),
    ],
)
def test_a_replaced_time_out_is_found(source: str, *, is_found: bool, tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    (tmp_path / "tried" / "test_one.py").write_text(source)
    assert bool(list(replaced_timeouts(tmp_path, ["tried"]))) is is_found


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('monkeypatch.setenv("SPS_PATIENCE", "', '")'),
        ('os.environ["SPS_PATIENCE"] = "', '"'),
        ('env = {"SPS_PATIENCE": "', '"}'),
        ("command = 'SPS_PATIENCE=", " sps status'"),
        ("with patience(", "): pass"),
        ("with patience(1 if is_slow else ", "): pass"),
        ("with harness.patience.patience(factor=", "): pass"),
    ],
)
def test_a_factor_that_is_too_large_is_found(before: str, after: str, tmp_path: Path) -> None:
    (tmp_path / "tried").mkdir()
    source = tmp_path / "tried" / "test_one.py"
    for factor, is_found in (("0.01", False), ("10", False), ("10.5", True), ("100", True)):
        source.write_text(f"\n{before}{factor}{after}\n")
        found = list(too_large_factors(tmp_path, ["tried"]))
        assert [line.partition(": ")[0] for line in found] == ["tried/test_one.py:2"] * is_found
