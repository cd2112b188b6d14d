"""scripts/conformance, on a file of tests as JAX's are."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import conformance
from benchmarks.conformance_runs import Run, Settings, run_directly

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
    @parameterized.parameters(1, 2)
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

    def test_skipped_there(self):
        if through_a_proxy():
            self.skipTest("there")

if __name__ == "__main__":
    absltest.main(testLoader=jtu.JaxTestLoader())
"""
KNOWN = """
[[difference]]
reason = "the client has no pointers"
tests = ["own_test::OwnTest.*is_known"]

[[difference]]
reason = "known since"
tests = ["other_test::A.b"]
"""


def test_a_file_is_run_both_ways_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "own_test.py").write_text(TESTS)
    (tmp_path / "known.toml").write_text(KNOWN)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    out = tmp_path / "out.json"
    earlier = {"explained": {"A.a": "as ever"}, "unexplained": {"A.b": "wrong", "A.c": "worse"}}
    results = {"other_test": earlier, "own_test": earlier}
    out.write_text(json.dumps({"jaxlib": version("jaxlib"), "result": results}))

    known = f"--differences={tmp_path / 'known.toml'}"
    code = conformance.main([f"--jax-tests={tmp_path}", known, f"--out={out}", "own_test"])

    assert code == 1
    kept = json.loads(out.read_text())
    assert kept["benchmark"] == "conformance"
    assert kept["result"]["other_test"] == {
        "explained": {"A.a": "as ever", "A.b": "known since"},
        "unexplained": {"A.c": "worse"},
    }, "the results of other files stay"
    result = kept["result"]["own_test"]
    assert result["tests"] == 10
    assert (result["direct"], result["proxy"], result["share"]) == (7, 3, round(3 / 7, 4))
    assert result["explained"] == {
        "OwnTest.test_differs_and_is_known": "the client has no pointers"
    }
    assert set(result["passed_alone"]) == {"OwnTest.test_passes_the_second_time"}
    assert "the first time" in result["passed_alone"]["OwnTest.test_passes_the_second_time"]
    wrong = result["unexplained"]
    assert "a copy is necessary" in wrong.pop("OwnTest.test_differs")
    assert wrong == {
        "OwnTest.test_ends_the_process": "its process ended with 7",
        "OwnTest.test_skipped_there": "it was skipped",
    }
    assert (result["not_reached"], result["broken"], result["proxy_end"]) == ({}, {}, "")
    printed = capsys.readouterr().out
    assert "7 on the CPU,     3 through the proxy (42.86%)" in printed
    assert "known: OwnTest.test_differs_and_is_known: the client has no pointers" in printed
    assert "OwnTest.test_differs: " in printed


#: The second ends neither by itself nor by pytest's timeout.
HANGS = """
import signal
import threading
import unittest

class OwnTest(unittest.TestCase):
    def test_a(self):
        pass

    def test_b(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        threading.Event().wait()

    def test_c(self):
        pass
"""


def test_a_test_that_cannot_be_ended_ends_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "own_test.py").write_text(HANGS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    settings = Settings(jax=tmp_path, cases=3, test_timeout=4, file_timeout=600)
    found = run_directly("own_test", settings)

    assert found.passed == {"OwnTest.test_a", "OwnTest.test_c"}
    assert found.failed == {"OwnTest.test_b": "it hung"}
    assert (found.broken, found.not_reached) == ("", ())


def run(*tests: str, passed: str = "", failed: str = "", broken: str = "") -> Run:
    return Run(
        collected=tests,
        passed=frozenset(passed.split()),
        failed=dict.fromkeys(failed.split(), "wrong"),
        skipped=frozenset(),
        seconds=1,
        broken=broken,
    )


def test_what_was_not_reached_is_no_difference_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    direct = run("a", "b", "c", "d", "e", passed="a b c d")
    proxied = run("a", "b", "c", "d", "e", passed="a", failed="b")
    alone = run("b", failed="b")
    monkeypatch.setattr(conformance, "run_directly", lambda *_: direct)
    monkeypatch.setattr(
        conformance, "run_through_proxy", lambda _f, _s, only=(): alone if only else proxied
    )
    settings = Settings(jax=Path(), cases=3, test_timeout=1, file_timeout=1)

    result = conformance.run_file("a_test", settings, [])

    assert (result["direct"], result["proxy"], result["share"]) == (2, 1, 0.5)
    assert result["unexplained"] == {"b": "wrong"}
    assert result["not_reached"] == {
        "direct": {"tests": 1, "from": "e"},
        "proxy": {"tests": 3, "from": "c"},
    }


def test_a_run_that_broke_is_not_well() -> None:
    well = {"unexplained": {}, "proxy_end": "", "broken": {}}
    assert conformance.is_well(well)
    assert not conformance.is_well(well | {"broken": {"direct": "its process ended with 4"}})
    assert not conformance.is_well(well | {"proxy_end": "ended with -11"})


def test_a_part_of_a_file_is_not_kept_for_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        conformance.main([f"--jax-tests={tmp_path}", "--pytest=-ka", f"--out={tmp_path / 'o'}"])
    assert "a part of a file" in capsys.readouterr().err


def test_results_with_another_jaxlib_go(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text(json.dumps({"jaxlib": "0.1", "result": {"other_test": {}}}))
    conformance.keep("a_test", {"direct": 1}, [], out)
    assert json.loads(out.read_text())["result"] == {"a_test": {"direct": 1}}


def test_every_known_difference_names_a_file_and_has_a_reason() -> None:
    for difference in conformance.known_differences(conformance.DIFFERENCES):
        file, _, test = difference.test.partition("::")
        assert file in conformance.FILES
        assert "." in test
        assert difference.reason
