"""Sources and environments of other projects' test suites."""

from __future__ import annotations

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from conformance.suites import Suite, constraints_of, load_suites, make_source


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
