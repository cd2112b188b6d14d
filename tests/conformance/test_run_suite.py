"""scripts/conformance, on a small suite with tests as JAX's are."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from conformance import plugin, run_suite, table
from conformance.compare import (
    compare,
    first_not_reached,
    is_well,
    known_differences,
    merge,
    reason_of,
)
from conformance.runs import Run, Settings, run_directly, run_through_proxy
from conformance.suites import Suite, constraints_of, load_suites, make_source, versions

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
PREFIX = "tests/own_test.py::OwnTest::"


def test_a_part_runs_both_ways_and_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "own_test.py").write_text(TESTS)
    (tmp_path / "known.toml").write_text(KNOWN)
    (tmp_path / "suites.toml").write_text(SUITES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    out = tmp_path / "out.json"
    earlier = {
        "explained": {"tests/other_test.py::A::a": "as ever"},
        "unexplained": {"tests/other_test.py::A::b": "wrong", "tests/other_test.py::A::c": "worse"},
    }
    releases = versions(Path(sys.executable), ()) | {"proxy's jaxlib": version("jaxlib")}
    parts = {"other": earlier, "own": earlier, "gone": earlier}
    out.write_text(json.dumps({"ref": "v1", "versions": releases, "parts": parts}))

    code = run_suite.main(
        [
            *("--suite=own", f"--suites={tmp_path / 'suites.toml'}", f"--source={tmp_path}"),
            *(f"--differences={tmp_path / 'known.toml'}", f"--python={sys.executable}"),
            *(f"--out={out}", "own"),
        ]
    )

    assert code == 1
    kept = json.loads(out.read_text())
    assert (kept["suite"], kept["ref"]) == ("own", "v1")
    assert kept["parts"].keys() == {"other", "own"}
    assert kept["parts"]["other"] == {
        "explained": {
            "tests/other_test.py::A::a": "as ever",
            "tests/other_test.py::A::b": "known since",
        },
        "unexplained": {"tests/other_test.py::A::c": "worse"},
    }, "the results of other parts stay"
    result = kept["parts"]["own"]
    assert result["tests"] == 11
    assert (result["direct"], result["proxy"], result["share"]) == (8, 4, 0.5)
    assert result["explained"] == {
        f"{PREFIX}test_differs_and_is_known": "the client has no pointers"
    }
    assert set(result["passed_alone"]) == {f"{PREFIX}test_passes_the_second_time"}
    assert "the first time" in result["passed_alone"][f"{PREFIX}test_passes_the_second_time"]
    wrong = result["unexplained"]
    assert "a copy is necessary" in wrong.pop(f"{PREFIX}test_differs")
    assert wrong == {
        f"{PREFIX}test_ends_the_process": "its process ended with 7",
        f"{PREFIX}test_skipped_there": "it was skipped",
    }
    assert (result["not_reached"], result["broken"], result["proxy_end"]) == ({}, {}, "")
    printed = capsys.readouterr().out
    assert "8 on the CPU,     4 through the proxy (50.00%)" in printed
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
    parts = {"other": part(2, 2, 2), "own": earlier}
    out.write_text(json.dumps({"ref": "v1", "versions": releases, "parts": parts}))
    arguments = [
        *("--suite=own", f"--suites={tmp_path / 'suites.toml'}", f"--source={tmp_path}"),
        *(f"--python={sys.executable}", f"--out={out}", "--continue"),
    ]

    assert run_suite.main(arguments) == 0

    kept = json.loads(out.read_text())["parts"]
    assert kept["other"] == parts["other"]
    assert (kept["own"]["tests"], kept["own"]["direct"], kept["own"]["proxy"]) == (3, 3, 3)
    assert (kept["own"]["not_reached"], kept["own"]["unexplained"]) == ({}, {})
    assert kept["own"]["passed_alone"] == {"x": "slow"}
    assert kept["own"]["direct_s"] > 10
    capsys.readouterr()
    assert run_suite.main(arguments) == 0
    assert capsys.readouterr().out.count("nothing is left to run") == 2

    # What was compared earlier counts, and a part that found no test is run.
    parts["other"] = part(2, 2, 1) | {"unexplained": {"x": "wrong"}}
    out.write_text(json.dumps({"ref": "v1", "versions": releases, "parts": parts}))
    assert run_suite.main([*arguments, "other"]) == 1
    parts["own"] = part(0, 0, 0)
    out.write_text(json.dumps({"ref": "v1", "versions": releases, "parts": parts}))
    assert run_suite.main([*arguments, "own"]) == 0
    assert json.loads(out.read_text())["parts"]["own"]["tests"] == 3


def part(tests: int, direct: int, proxy: int, **not_reached: tuple[int, str]) -> dict[str, Any]:
    """Returns a kept result; ``not_reached`` has how many tests, and from which on, of each run."""
    return {
        "tests": tests,
        "direct": direct,
        "proxy": proxy,
        "share": round(proxy / max(1, direct), 4),
        "direct_s": 10.0,
        "proxy_s": 10.0,
        "not_reached": {
            how.removesuffix("_left"): {"tests": count, "from": first}
            for how, (count, first) in not_reached.items()
        },
        "broken": {},
        "proxy_end": "",
        "passed_alone": {},
        "explained": {},
        "unexplained": {},
    }


def test_two_steps_of_a_part_are_merged() -> None:
    earlier = part(9, 3, 2, proxy_left=(5, "e")) | {"unexplained": {"b": "wrong"}}
    later = part(5, 1, 1, direct_left=(2, "h")) | {"explained": {"f": "why"}}

    merged = merge(earlier, later)

    assert (merged["tests"], merged["direct"], merged["proxy"]) == (9, 4, 3)
    assert (merged["share"], merged["direct_s"]) == (0.75, 20.0)
    assert (merged["unexplained"], merged["explained"]) == ({"b": "wrong"}, {"f": "why"})
    assert first_not_reached(merged) == "h"


@dataclasses.dataclass
class Item:
    """What the plug-in reads of a collected test."""

    nodeid: str


def test_tests_that_differ_run_again_in_a_part_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(plugin.VARIABLE, str(tmp_path / "results"))
    plugin.choose(tmp_path / "results", ["b", "d"], "c")
    items: list[Any] = [Item(name) for name in "abcde"]
    plugin.pytest_collection_modifyitems(items)
    assert items == [Item("d")]


def test_a_run_that_cannot_continue_is_refused() -> None:
    earlier = part(9, 3, 2, proxy_left=(5, "e"))
    with pytest.raises(ValueError, match="there is no test e: run all"):
        merge(earlier, part(0, 0, 0))


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

    settings = Settings(directory=tmp_path, tests=["tests"], devices=8, test_timeout=4, timeout=600)
    found = run_directly(settings)

    assert found.passed == {f"{PREFIX}test_a", f"{PREFIX}test_c"}
    assert found.failed == {f"{PREFIX}test_b": "it hung"}
    assert (found.broken, found.not_reached) == ("", ())


#: The proxy is the default backend whatever the tests choose; a file that does not import is named.
CHOOSES = """
import jax

jax.config.update("jax_platform_name", "cpu")

def test_platform():
    assert jax.devices()[0].platform != "cpu"
"""


def test_tests_that_choose_the_cpu_run_through_the_proxy_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "test_chooses.py").write_text(CHOOSES)
    (tmp_path / "test_wrong.py").write_text("import no_such_module")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    settings = Settings(directory=tmp_path, tests=["."], devices=1, test_timeout=60, timeout=600)
    found = run_through_proxy(settings)

    assert found.passed == {"test_chooses.py::test_platform"}
    assert found.backend == "proxy"
    assert set(found.failed) == {"test_wrong.py"}
    assert "no_such_module" in found.failed["test_wrong.py"]
    assert (found.broken, found.proxy, found.not_reached) == ("", "", ())


def run(*tests: str, passed: str = "", failed: str = "", backend: str = "") -> Run:
    return Run(
        collected=tests,
        passed=frozenset(passed.split()),
        failed=dict.fromkeys(failed.split(), "wrong"),
        skipped=frozenset(),
        seconds=1,
        backend=backend,
    )


def compared(direct: Run, proxied: Run, again: Run | None = None) -> dict[str, Any]:
    asked: list[Sequence[str]] = []

    def run_again(tests: Sequence[str]) -> Run:
        asked.append(tests)
        assert again is not None
        return again

    return compare("own", direct, proxied, [], run_again) | {"asked": asked}


def test_tests_that_were_not_reached_are_no_difference_and_are_counted() -> None:
    direct = run("a", "b", "c", "d", "e", passed="a b c d")
    proxied = run("a", "b", "c", "d", "e", passed="a", failed="b")

    result = compared(direct, proxied, run("b", failed="b"))

    assert (result["direct"], result["proxy"], result["share"]) == (2, 1, 0.5)
    assert result["unexplained"] == {"b": "wrong"}
    assert result["asked"] == [["b"]]
    assert result["not_reached"] == {
        "direct": {"tests": 1, "from": "e"},
        "proxy": {"tests": 3, "from": "c"},
    }


def test_a_run_on_the_local_cpu_is_not_one_through_the_proxy() -> None:
    same = run("a", passed="a", backend="cpu")
    assert is_well(compared(same, run("a", passed="a", backend="proxy")))
    assert not is_well(compared(same, same))


def test_a_run_that_broke_is_not_well() -> None:
    well = {"unexplained": {}, "proxy_end": "", "broken": {}}
    assert is_well(well)
    assert not is_well(well | {"broken": {"direct": "its process ended with 4"}})
    assert not is_well(well | {"proxy_end": "ended with -11"})


def test_some_tests_of_a_part_are_not_kept_for_all_of_it(
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
    for record in (
        {"ref": "v1", "versions": {"jax": "0.1"}, "parts": {"b": {}}},
        {"ref": "v0", "versions": {"jax": "0.2"}, "parts": {"b": {}}},
    ):
        out.write_text(json.dumps(record))
        run_suite.write_results(suite, {"a": {"direct": 1}}, [], {"jax": "0.2"}, out)
        assert json.loads(out.read_text())["parts"] == {"a": {"direct": 1}}


def test_results_of_a_part_with_other_arguments_are_dropped(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    earlier = Suite(name="own", repository="o/n", ref="v1", parts={"a": ["-k=x"], "b": ["b.py"]})
    run_suite.write_results(earlier, {"a": part(2, 2, 2), "b": part(1, 1, 1)}, [], {}, out)
    now = dataclasses.replace(earlier, parts={"a": ["-k=x or y"], "b": ["b.py"]})
    assert run_suite.recorded_parts(now, {}, out) == {"b": part(1, 1, 1)}


def test_a_suite_chooses_its_own_versions_except_of_jax() -> None:
    constraints = "# why\nflax==0.12.12; python_version >= '3.12'\njax==0.1\nOptax_x==1\nnumpy==2"
    chosen = constraints_of(("flax==0.12.7", "optax-x<3", "numpy"), constraints).splitlines()
    assert chosen == ["# why", "numpy==2", f"jax=={version('jax')}", f"jaxlib=={version('jaxlib')}"]


def test_an_unknown_key_of_a_suite_is_refused(tmp_path: Path) -> None:
    (tmp_path / "suites.toml").write_text("[own]\nreposotory = 'a/b'")
    with pytest.raises(ValueError, match=r"suite own: .'reposotory'. unknown; there is"):
        load_suites(tmp_path / "suites.toml")


def test_a_source_is_a_shallow_clone_of_its_tag_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    for arguments in (
        ["init", "--quiet", str(repository)],
        ["-C", str(repository), "commit", "--quiet", "--allow-empty", "--message=first"],
        ["-C", str(repository), "tag", "v1"],
    ):
        if "commit" in arguments:
            (repository / "tests").mkdir()
            (repository / "tests" / "a_test.py").touch()
            (repository / "other").touch()
            git("-C", str(repository), "add", "--all")
        git(*arguments)
    monkeypatch.setenv("SPS_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in (
        ("COUNT", "1"),
        ("KEY_0", f"url.{repository}.insteadOf"),
        ("VALUE_0", "https://github.com/owner/own"),
    ):
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    suite = Suite(name="own", repository="owner/own", ref="v1", parts={}, paths=("tests",))

    source = make_source(suite)

    assert (source / "tests" / "a_test.py").exists()
    assert not (source / "other").exists()
    repository.rename(tmp_path / "gone")
    assert make_source(suite) == source


def git(*arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@localhost"]
    subprocess.run(["git", *identity, *arguments], check=True)


def test_patterns_of_differences_take_brackets_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(
        "[[difference]]\nreason = 'why'\ntests = ['own/a.py::test[1-*]']"
    )
    known = known_differences(tmp_path / "known.toml")
    assert reason_of("own/a.py::test[1-x]", known) == "why"
    assert reason_of("own/a.py::test1", known) == ""


def test_every_known_difference_names_a_suite_and_has_a_reason() -> None:
    suites = load_suites()
    for difference in known_differences(run_suite.DIFFERENCES):
        suite, _, test = difference.test.partition("/")
        assert suite in suites
        assert "::" in test
        assert difference.reason


def test_the_document_shows_the_kept_results() -> None:
    results = table.load_results()
    assert table.table_of_the_document() == table.rendered(results)
    for record in results:
        assert record["parts"].keys() <= load_suites()[record["suite"]].parts.keys()


def test_every_difference_in_the_kept_results_has_a_reason() -> None:
    results = table.load_results()
    assert {record["suite"] for record in results} >= {"jax", "equinox", "flax", "orbax", "keras"}
    for record in results:
        for name, part in record["parts"].items():
            assert part["unexplained"] == {}, (record["suite"], name)
            assert part["broken"] == {}, (record["suite"], name)
            assert part["proxy_end"] == "", (record["suite"], name)
