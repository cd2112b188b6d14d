"""scripts/conformance on a small suite, whose tests are like JAX's."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from conformance import run_suite
from conformance.runs import Run, Settings
from conformance.suites import Suite, versions
from harness.results import measuring
from tests.conformance.parts import PREFIX, part

#: Named by what becomes of each on the CPU and through a proxy.
TESTS = """
import os
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized
from jax._src import test_util as jtu

jax.config.parse_flags_with_absl()

def pointer(x):
    return np.from_dlpack(x.addressable_data(0), copy=False).ctypes.data

def through_a_proxy():
    return jax.devices()[0].device_kind != "cpu"

class OwnTest(jtu.JaxTestCase):
    # (As some of JAX's tests choose their parameters: of the platform cpu there are two.)
    @parameterized.parameters(*range(1, 3 if jtu.device_under_test() == "cpu" else 2))
    def test_passes(self, n):
        self.assertLen(jax.devices(), 8)
        self.assertAllClose(jax.jit(jnp.sum)(jnp.ones(n)), jnp.float32(n))

    def test_fails(self):
        self.assertEqual(jnp.ones(2).sum(), 3)

    def test_skipped_by_both(self):
        self.skipTest("always")

    def test_differs(self):
        self.assertGreater(pointer(jnp.ones(2)), 0)

    def test_differs_and_is_known(self):
        pointer(jnp.ones(2))

    def test_ends_the_process(self):
        if through_a_proxy():
            os._exit(7)

    def test_only_through_a_proxy(self):
        self.assertTrue(through_a_proxy())

    def test_passes_the_second_time(self):
        if through_a_proxy():
            flag = os.path.join(os.path.dirname(__file__), "tried")
            tried = os.path.exists(flag)
            open(flag, "w").close()
            self.assertTrue(tried, "the first time")

    def test_settings_are_those_of_the_suite(self):
        self.assertFalse(jax.config.values["jax_cpu_enable_async_dispatch"])

    def test_skipped_there(self):
        if through_a_proxy():
            self.skipTest("there")

if __name__ == "__main__":
    absltest.main(testLoader=jtu.JaxTestLoader())
"""
KNOWN = """
[[difference]]
reason = "the client has no pointers"
tests = ["own/tests/own_test.py::OwnTest::*is_known"]

[[difference]]
reason = "known since"
tests = ["own/tests/other_test.py::A::b"]
"""
SUITES = """
[own]
repository = "owner/own"
ref = "v1"
environment = { JAX_TEST_DUT = "cpu" }
jax_settings = { jax_cpu_enable_async_dispatch = false }

[own.parts]
other = ["tests/other_test.py"]
own = ["tests/own_test.py"]
"""


@pytest.mark.thorough
def test_a_part_runs_both_ways_and_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "own_test.py").write_text(TESTS)
    (tmp_path / "known.toml").write_text(KNOWN)
    (tmp_path / "suites.toml").write_text(SUITES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    out = tmp_path / "out.json"
    releases = versions(Path(sys.executable), ()) | {"proxy's jaxlib": version("jaxlib")}
    earlier = {"ref": "v1", "versions": releases, "failed": {"tests/other_test.py::A::a": "wrong"}}
    parts = {"other": earlier, "own": earlier, "gone": earlier}
    out.write_text(json.dumps({"suite": "own", "parts": parts}))

    code = run_suite.main(
        [
            *("--suite=own", f"--suites={tmp_path / 'suites.toml'}", f"--source={tmp_path}"),
            *(f"--differences={tmp_path / 'known.toml'}", f"--python={sys.executable}"),
            *(f"--out={out}", "own"),
        ]
    )

    assert code == 1
    kept = json.loads(out.read_text())
    assert kept["suite"] == "own"
    assert kept["parts"].keys() == {"other", "own"}
    assert kept["parts"]["other"] == earlier, "the results of other parts stay"
    result = kept["parts"]["own"]
    assert result["tests"] == 11
    assert (result["direct"], result["proxy"], result["share"]) == (8, 3, 0.375)
    assert set(result["passed_alone"]) == {f"{PREFIX}test_passes_the_second_time"}
    assert "the first time" in result["passed_alone"][f"{PREFIX}test_passes_the_second_time"]
    wrong = result["failed"]
    assert "a copy is necessary" in wrong.pop(f"{PREFIX}test_differs")
    assert wrong.pop(f"{PREFIX}test_differs_and_is_known")
    assert wrong == {
        f"{PREFIX}test_ends_the_process": "its process ended with 7",
        f"{PREFIX}test_skipped_there": "it was skipped",
    }
    assert (result["ref"], result["versions"]) == ("v1", releases)
    assert result["arguments"] == ["tests/own_test.py"]
    assert result["environment"] == {"JAX_TEST_DUT": "cpu"}
    assert result["provenance"]["cores"] == os.cpu_count()
    assert (result["not_reached"], result["broken"], result["proxy_end"]) == ({}, {}, "")
    printed = capsys.readouterr().out
    assert "8 on the CPU,     3 through the proxy (37.50%)" in printed
    assert f"known: {PREFIX}test_differs_and_is_known: the client has no pointers" in printed
    assert f"{PREFIX}test_differs: " in printed


#: The third test fails where the second did not run first; the first fails always.
CONTINUED = """
import unittest

from jax._src import test_util  # has the setting that SUITES names

class OwnTest(unittest.TestCase):
    ran = []

    def test_a(self):
        self.ran.append("a")
        self.fail()

    def test_b(self):
        self.ran.append("b")

    def test_c(self):
        self.assertEqual(self.ran, ["b"])
"""


def test_a_part_continues_where_the_earlier_run_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "own_test.py").write_text(CONTINUED)
    (tmp_path / "suites.toml").write_text(SUITES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    out = tmp_path / "out.json"
    earlier = part(
        *(3, 1, 1), direct_left=(1, f"{PREFIX}test_c"), proxy_left=(2, f"{PREFIX}test_b")
    ) | {"passed_alone": {"x": "slow"}}
    releases = versions(Path(sys.executable), ()) | {"proxy's jaxlib": version("jaxlib")}
    what = {"ref": "v1", "versions": releases}
    parts = {"other": part(2, 2, 2) | what, "own": earlier | what}
    out.write_text(json.dumps({"parts": parts}))
    arguments = [
        *("--suite=own", f"--suites={tmp_path / 'suites.toml'}", f"--source={tmp_path}"),
        *(f"--python={sys.executable}", f"--out={out}", "--continue"),
    ]

    assert run_suite.main(arguments) == 0

    kept = json.loads(out.read_text())["parts"]
    assert kept["other"] == parts["other"]
    assert (kept["own"]["tests"], kept["own"]["direct"], kept["own"]["proxy"]) == (3, 3, 3)
    assert (kept["own"]["not_reached"], kept["own"]["failed"]) == ({}, {})
    assert kept["own"]["continues"] == [None], "the earlier run has no provenance"
    assert kept["own"]["passed_alone"] == {"x": "slow"}
    assert kept["own"]["direct_s"] > 10
    capsys.readouterr()
    assert run_suite.main(arguments) == 0
    assert capsys.readouterr().out.count("nothing is left to run") == 2

    # What was compared earlier counts, and a part that found no test is run.
    parts["other"] = part(2, 2, 1) | {"failed": {"x": "wrong"}} | what
    out.write_text(json.dumps({"parts": parts}))
    assert run_suite.main([*arguments, "other"]) == 1
    parts["own"] = part(0, 0, 0) | what
    out.write_text(json.dumps({"parts": parts}))
    assert run_suite.main([*arguments, "own"]) == 0
    assert json.loads(out.read_text())["parts"]["own"]["tests"] == 3


def test_engines_are_compared_on_the_same_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "suites.toml").write_text(SUITES)
    (tmp_path / "known.toml").write_text(KNOWN.replace('"own/', '"engines/own/'))
    places = []

    def runs(engine: str, *failed: str) -> Callable[..., Run]:
        def run(settings: Settings, only: Sequence[str] = ()) -> Run:
            places.append((engine, settings.devices, tuple(settings.slices)))
            wanted = only or [f"{PREFIX}test_a", f"{PREFIX}test_b", f"{PREFIX}test_is_known"]
            return Run(
                collected=tuple(wanted),
                passed=frozenset(wanted) - {*failed},
                failed=dict.fromkeys(failed, "it failed"),
                skipped=frozenset(),
                seconds=1.0,
            )

        return run

    sides = (runs("local"), runs("executors", f"{PREFIX}test_b", f"{PREFIX}test_is_known"))
    monkeypatch.setattr(run_suite, "ENGINES", dataclasses.replace(run_suite.ENGINES, runs=sides))
    out = tmp_path / "out.json"

    code = run_suite.main(
        [
            *("--suite=own", f"--suites={tmp_path / 'suites.toml'}", f"--source={tmp_path}"),
            *(f"--differences={tmp_path / 'known.toml'}", f"--python={sys.executable}"),
            *(f"--out={out}", "--engines", "own"),
        ]
    )

    assert code == 1
    kept = json.loads(out.read_text())
    assert kept["suite"] == "engines/own"
    failed = {f"{PREFIX}test_is_known", f"{PREFIX}test_b"}
    assert kept["parts"]["own"]["failed"].keys() == failed
    printed = capsys.readouterr().out
    assert f"known: {PREFIX}test_is_known: the client has no pointers" in printed
    assert f"{PREFIX}test_b: it failed" in printed
    # (What differs runs again.)
    slices = ("tpuv6e:2x4", "tpuv6e:2x4")
    assert sorted(places) == [*[("executors", 16, slices)] * 2, ("local", 16, slices)]
    assert "3 on the local engine,     1 on executors" in printed


def test_selected_tests_of_a_part_are_not_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_suite.main(["--suite=optax", "--pytest=-ka", f"--out={tmp_path / 'o'}"])
    assert "some tests of a part" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--suite=none"], "--suite none: there is "),
        (["--suite=optax", "more"], "more: the parts of optax are transforms"),
        (["--suite=optax", "--continue"], "--continue: --write or --out says which results"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_suite.main(arguments)
    assert message in capsys.readouterr().err


def test_results_of_other_releases_and_tests_are_dropped(tmp_path: Path) -> None:
    suite = Suite(name="own", repository="o/n", ref="v1", parts={"a": [], "b": []})
    out = tmp_path / "out.json"
    for earlier in (
        {"ref": "v1", "versions": {"jax": "0.1"}},
        {"ref": "v0", "versions": {"jax": "0.2"}},
        {"ref": "v1", "versions": {"jax": "0.2"}, "arguments": ["-k=x"]},
        {"ref": "v1", "versions": {"jax": "0.2"}, "environment": {"CASES": "3"}},
    ):
        out.write_text(json.dumps({"parts": {"b": earlier}}))
        run_suite.write_results(suite, {"a": {"direct": 1}}, {"jax": "0.2"}, out)
        assert json.loads(out.read_text())["parts"] == {"a": {"direct": 1}}


def test_results_of_a_part_with_other_arguments_are_dropped(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    earlier = Suite(name="own", repository="o/n", ref="v1", parts={"a": ["-k=x"], "b": ["b.py"]})
    with measuring() as measurement:
        kept = {
            name: run_suite.stamped_part(earlier, name, part(2, 2, 2), {}, measurement)
            for name in earlier.parts
        }
    run_suite.write_results(earlier, kept, {}, out)
    now = dataclasses.replace(earlier, parts={"a": ["-k=x or y"], "b": ["b.py"]})
    assert run_suite.recorded_parts(now, {}, out) == {"b": kept["b"]}
