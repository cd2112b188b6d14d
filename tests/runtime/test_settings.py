"""Where settings come from, which wins, and which directories are refused."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.job_records import job_record
from shared_pathways_service.agent.journal import Journal
from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.runtime import user_directories
from shared_pathways_service.runtime.embedded.job_files import JobFiles
from shared_pathways_service.runtime.settings import Settings, private_directory
from shared_pathways_service.runtime.user_directories import RUNTIME_DIR_LIMIT, of_container

CONFIG = """
[profiles.default]
log_level = "warning"
log_format = "json"

[profiles.lab]
runtime_dir = "/tmp/lab-run"
log_level = "error"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def test_argument_then_variable_then_profile_then_default(config: Path) -> None:
    environ = {"SPS_CONFIG": str(config)}
    settings = Settings.load(environ=environ)
    assert settings.profile == "default"
    assert (settings.log_level, settings.log_format) == ("WARNING", "json")
    environ["SPS_LOG_LEVEL"] = "info"
    assert Settings.load(environ=environ).log_level == "INFO"
    assert Settings.load(environ=environ, log_level="debug").log_level == "DEBUG"
    assert Settings.load(environ=environ).bind_address == "127.0.0.1"


def test_profile_is_chosen_by_argument_then_variable(config: Path) -> None:
    environ = {"SPS_CONFIG": str(config), "SPS_PROFILE": "lab"}
    settings = Settings.load(environ=environ)
    assert (settings.profile, settings.runtime_dir) == ("lab", Path("/tmp/lab-run"))
    assert settings.log_format == "text", "the default profile is not mixed in"
    assert Settings.load(environ=environ, profile="default").log_level == "WARNING"


def test_directories_of_the_platform_without_any_setting(tmp_path: Path) -> None:
    settings = Settings.load(environ={"SPS_CONFIG": str(tmp_path / "none.toml")})
    assert settings.profile is None
    assert settings.state_dir.is_absolute()
    assert settings.cache_dir != settings.state_dir
    runtime = str(settings.runtime_dir)
    assert runtime == runtime.lower()
    assert len(runtime) <= RUNTIME_DIR_LIMIT


def test_paths_that_are_not_utf8(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    untold: None,
) -> None:
    name = os.fsdecode(b"/home/j\xfcrgen")
    for variable in ("SPS_RUNTIME_DIR", "SPS_STATE_DIR", "SPS_CACHE_DIR"):
        with pytest.raises(InvalidRequestError, match="expected a path in UTF-8") as refused:
            Settings.load(environ={variable: name})
        assert refused.value.field == variable
    # Messages between processes need UTF-8; a home is not chosen by its user.
    monkeypatch.setenv("HOME", str(tmp_path / os.fsdecode(b"j\xfcrgen")))
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    settings = Settings.load(environ={})
    assert settings.config == Path("/dev/null")
    assert settings.state_dir.name == f"sps-{os.getuid()}-state"
    assert settings.cache_dir.name == f"sps-{os.getuid()}-cache"
    assert "is not UTF-8: " in caplog.text
    assert r"j\udcfcrgen" in caplog.text
    # (A log in UTF-8 can represent all of it.)
    caplog.text.encode()


def test_a_temporary_directory_that_is_not_utf8(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, untold: None
) -> None:
    name = os.fsdecode(b"j\xfcrgen")
    monkeypatch.setenv("HOME", str(tmp_path / name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InvalidRequestError) as refused:
        Settings.load(environ={"SPS_CONFIG": "/none.toml"})
    assert refused.value.field == "SPS_STATE_DIR"
    assert rf"TMPDIR, {tmp_path}/j\udcfcrgen, is not UTF-8" in refused.value.message
    assert refused.value.hint == "set SPS_STATE_DIR to a directory that you can write"


def test_a_system_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, untold: None
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", _no_temporary_directory)
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    environ = {"SPS_CONFIG": "/none.toml"}
    for variable, usual in (
        ("SPS_STATE_DIR", f"{tmp_path}/.local/state/shared-pathways-service"),
        ("SPS_CACHE_DIR", f"{tmp_path}/.cache/shared-pathways-service"),
        ("SPS_RUNTIME_DIR", "/tmp"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            Settings.load(environ=environ)
        assert refused.value.field == variable
        assert refused.value.message == (
            f"{variable} has no default: {usual} cannot be written, and no temporary directory "
            "(TMPDIR, /tmp) can be written"
        )
        assert refused.value.hint == f"set {variable} to a directory that you can write"
        environ[variable] = str(tmp_path)


def test_a_full_disk_does_not_move_the_runtime_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # (`tempfile` looks for a directory with space.)
    monkeypatch.setattr("tempfile.gettempdir", _no_temporary_directory)
    environ = {
        "SPS_CONFIG": "/none.toml",
        "SPS_STATE_DIR": str(tmp_path),
        "SPS_CACHE_DIR": str(tmp_path),
    }
    expected = of_container(Path(f"/tmp/sps-{os.getuid()}"))
    assert Settings.load(environ=environ).runtime_dir == expected


def test_the_runtime_directory_does_not_depend_on_the_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_directories: Path
) -> None:
    monkeypatch.delenv("SPS_RUNTIME_DIR")
    expected = of_container(Path(f"/tmp/sps-{os.getuid()}"))
    # (Slurm gives each job a temporary directory, and a login has the system's for the session.)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for session in ("", str(own_directories)):
        monkeypatch.setenv("XDG_RUNTIME_DIR", session)
        assert Settings.load().runtime_dir == expected


def test_where_no_directory_is_common_a_temporary_one_is_used(
    monkeypatch: pytest.MonkeyPatch, own_directories: Path
) -> None:
    monkeypatch.delenv("SPS_RUNTIME_DIR")
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != Path("/tmp"))
    for directory, problem in (
        (own_directories, ""),
        (own_directories / "UPPER", "lower case"),
        (own_directories / ("long" * 30), "at most"),
    ):
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        if not problem:
            expected = of_container(directory / f"sps-{os.getuid()}")
            assert Settings.load().runtime_dir == expected
        else:
            with pytest.raises(
                InvalidRequestError, match=f"/tmp cannot be written, .*{directory}/.* not {problem}"
            ):
                Settings.load()


def test_a_container_has_a_part_of_its_own_in_a_directory_that_only_its_user_enters(
    monkeypatch: pytest.MonkeyPatch, own_directories: Path
) -> None:
    monkeypatch.setattr(user_directories, "container_key", lambda: "0a1b2c3d")
    given = own_directories / "run"
    settings = Settings.load(environ={"SPS_RUNTIME_DIR": str(given)})
    assert settings.runtime_dir == given / "container-0a1b2c3d"
    # (Its processes get the whole path.)
    again = Settings.load(environ={"SPS_RUNTIME_DIR": str(settings.runtime_dir)})
    assert again.runtime_dir == settings.runtime_dir
    given.mkdir(mode=0o755)
    given.chmod(0o755)
    with pytest.raises(AccessDenied, match=f"{given} can be accessed by other users"):
        private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR")
    given.chmod(0o700)
    made = private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SPS_RUNTIME_DIR", "relative/path"),
        ("SPS_RUNTIME_DIR", "/tmp/Upper"),
        ("SPS_RUNTIME_DIR", "/tmp/" + "x" * RUNTIME_DIR_LIMIT),
        ("SPS_LOG_LEVEL", "loud"),
        ("SPS_LOG_FORMAT", "xml"),
        ("SPS_BIND_ADDRESS", "a b"),
        ("SPS_PROFILE", "nobody"),
    ],
)
def test_a_wrong_value_names_the_variable(variable: str, value: str, config: Path) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Settings.load(environ={"SPS_CONFIG": str(config), variable: value})
    assert caught.value.field == variable


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[profiles.default]\nruntime = '/tmp/x'", "profiles.default.runtime"),
        ("[profiles.default]\nlog_level = 3", "profiles.default.log_level"),
        ("[profiles]\ndefault = 3", "profiles.default"),
        ("[profiles.default", "SPS_CONFIG"),
    ],
)
def test_a_wrong_file_names_the_place(text: str, field: str, config: Path) -> None:
    config.write_text(text)
    with pytest.raises(InvalidRequestError) as caught:
        Settings.load(environ={"SPS_CONFIG": str(config)})
    assert caught.value.field == field


def test_private_directory_is_made_for_its_user_only(tmp_path: Path) -> None:
    made = private_directory(tmp_path / "a" / "b", "SPS_RUNTIME_DIR")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert private_directory(made, "SPS_RUNTIME_DIR") == made


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(
    "make",
    [
        lambda state: private_directory(state / "agents", "SPS_STATE_DIR"),
        lambda state: Journal(state / "journal"),
        lambda state: JobFiles(state).write(job_record()),
        lambda state: JobFiles(state).end(job_record(ended_at=2.0)),
    ],
)
def test_whatever_is_made_first_in_a_home_leaves_it_to_its_user(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    state = tmp_path / "new" / "state"
    make(state)
    made = [state, *(path for path in state.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}
    assert private_directory(state, "SPS_STATE_DIR") == state


def test_directory_open_to_others_or_of_others_or_linked_is_refused(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    opened.chmod(0o755)
    with pytest.raises(AccessDenied, match="other users") as caught:
        private_directory(opened, "SPS_RUNTIME_DIR")
    assert caught.value.hint == f"chmod 700 {opened}"
    private = private_directory(tmp_path / "mine", "SPS_RUNTIME_DIR")
    link = tmp_path / "link"
    link.symlink_to(private)
    with pytest.raises(InvalidRequestError, match="not a link"):
        private_directory(link, "SPS_RUNTIME_DIR")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InvalidRequestError) as wrong:
        private_directory(file, "SPS_RUNTIME_DIR")
    assert wrong.value.field == "SPS_RUNTIME_DIR"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    foreign = private_directory(tmp_path / "foreign", "SPS_RUNTIME_DIR")
    os.chown(foreign, 65534, 65534)
    with pytest.raises(AccessDenied, match="belongs to user 65534") as caught:
        private_directory(foreign, "SPS_RUNTIME_DIR")
    assert "set SPS_RUNTIME_DIR to another directory, such as a local one" in caught.value.hint
    assert "root_squash" in caught.value.hint


def test_the_proxys_token_is_not_taken_for_the_services(config: Path) -> None:
    # As it stands in a block, and in a child of `sps run`: no setting, right or wrong.
    environ = {"SPS_CONFIG": str(config), "SPS_TOKEN_FILE": "a/proxys.token"}
    assert not hasattr(Settings.load(environ=environ), "token_file")
    config.write_text('[profiles.default]\ntoken_file = "/t"\n')
    with pytest.raises(InvalidRequestError) as caught:
        Settings.load(environ=environ)
    assert caught.value.field == "profiles.default.token_file"


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_directories, "_told", set())


def test_a_user_without_a_home_has_private_directories_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, untold: None
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", _unknown)
    temporary = Path(tempfile.gettempdir())
    for _ in range(2):
        settings = Settings.load(environ={})
        assert settings.state_dir == temporary / f"sps-{os.getuid()}-state"
        assert settings.cache_dir == temporary / f"sps-{os.getuid()}-cache"
        # (Nobody else could have put a configuration there.)
        assert settings.config == Path("/dev/null")
    [said] = caplog.messages
    assert said == (
        f"user {os.getuid()} has no home: {settings.state_dir} is used instead, and may be lost "
        "(SPS_STATE_DIR names another directory)"
    )


def test_what_a_user_without_a_home_names_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, untold: None
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", _unknown)
    everything = {"SPS_CONFIG": "/none.toml", "SPS_STATE_DIR": "/s", "SPS_CACHE_DIR": "/c"}
    assert Settings.load(environ=everything).state_dir == Path("/s")
    assert caplog.messages == []
    with pytest.raises(InvalidRequestError) as caught:
        Settings.load(environ={"SPS_CONFIG": "/none.toml", "SPS_STATE_DIR": "~/s"})
    assert caught.value.field == "SPS_STATE_DIR"


def test_a_home_that_cannot_be_written_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    untold: None,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    # (Root may write everywhere.)
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != tmp_path)
    settings = Settings.load(environ={"SPS_CONFIG": "/none.toml"})
    assert settings.state_dir == Path(tempfile.gettempdir()) / f"sps-{os.getuid()}-state"
    [said] = caplog.messages
    assert said.startswith(f"{tmp_path}/.local/state/shared-pathways-service cannot be written: ")


def test_a_configuration_in_a_home_that_this_user_may_not_enter_does_not_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    directory = user_directories.config_file().parent
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text("[profiles.default]\ntoken_file = 1\n")
    with pytest.raises(InvalidRequestError):
        Settings.load(environ={})
    # (Root may enter all of them.)
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != directory)
    assert Settings.load(environ={}).config == Path("/dev/null")


def _no_temporary_directory() -> str:
    raise FileNotFoundError("No usable temporary directory found")


def _unknown(number: int) -> object:
    raise KeyError(number)


def test_the_port_of_the_agents_metrics_is_a_port(config: Path) -> None:
    environ = {"SPS_CONFIG": str(config)}
    settings = Settings.load(environ=environ)
    assert (settings.agent_metrics_port, settings.agent_metrics_address) == (None, "127.0.0.1")
    environ["SPS_AGENT_METRICS_PORT"] = "0"
    assert Settings.load(environ=environ).agent_metrics_port == 0
    for wrong in ("65536", "-1", "http"):
        environ["SPS_AGENT_METRICS_PORT"] = wrong
        with pytest.raises(InvalidRequestError, match="from 0 to 65535") as caught:
            Settings.load(environ=environ)
        assert caught.value.field == "SPS_AGENT_METRICS_PORT"


def test_bytes_of_the_compilation_cache_are_a_whole_number(config: Path) -> None:
    environ = {"SPS_CONFIG": str(config), "SPS_COMPILE_CACHE_BYTES": "0"}
    assert Settings.load(environ=environ).compile_cache_bytes == 0
    config.write_text("[profiles.default]\ncompile_cache_bytes = 5000\n")
    del environ["SPS_COMPILE_CACHE_BYTES"]
    assert Settings.load(environ=environ).compile_cache_bytes == 5000
    for wrong in ("-1", "1.5", "1GB", ""):
        config.write_text(f'[profiles.default]\ncompile_cache_bytes = "{wrong}"\n')
        with pytest.raises(InvalidRequestError, match="a whole number of bytes"):
            Settings.load(environ=environ)


def test_the_image_of_a_links_sidecar_has_no_blanks(config: Path) -> None:
    environ = {"SPS_CONFIG": str(config)}
    assert Settings.load(environ=environ).link_image == "python:3.13-slim"
    environ["SPS_LINK_IMAGE"] = "r.io/python:3.12"
    assert Settings.load(environ=environ).link_image == "r.io/python:3.12"
    environ["SPS_LINK_IMAGE"] = "r.io/a b"
    with pytest.raises(InvalidRequestError, match="a container image") as caught:
        Settings.load(environ=environ)
    assert caught.value.field == "SPS_LINK_IMAGE"


def test_the_factor_of_time_outs_is_checked_with_the_settings(config: Path) -> None:
    environ = {"SPS_CONFIG": str(config)}
    Settings.load(environ=environ | {"SPS_PATIENCE": "2.5"})
    Settings.load(environ=environ | {"SPS_PATIENCE": ""})
    with pytest.raises(InvalidRequestError) as raised:
        Settings.load(environ=environ | {"SPS_PATIENCE": "patient"})
    assert raised.value.field == "SPS_PATIENCE"
    assert "a number from 0.01 to 100" in str(raised.value)
    assert "patient" in str(raised.value)
