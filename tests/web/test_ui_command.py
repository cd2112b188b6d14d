"""`sps ui` as a command: its address, its browser, its end."""

from __future__ import annotations

import json
import re
import signal
import stat
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.programs import DEADLINE_S, sps_running
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.served_page import served_page
from shared_pathways_service.runtime.settings import Settings


def test_it_prints_an_address_that_works_and_ends_with_ctrl_c() -> None:
    with sps_running("ui", "--no-browser", "--allow-actions", "--json") as command:
        assert command.stdout
        url = json.loads(command.stdout.readline())["url"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", url)
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as page:
            assert b"<main" in page.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url.partition("?")[0], timeout=DEADLINE_S)
        # Open streams do not hold the end up.
        cookie = {"Cookie": _cookie_of(url)}
        stream = urllib.request.Request(url.partition("?")[0] + "api/stream", headers=cookie)
        with urllib.request.urlopen(stream, timeout=DEADLINE_S) as events:
            assert events.readline() == b"event: state\n"
            # Actions have the words of the commands.
            assert "no-such-job" in _deleted(url, "no-such-job", cookie)["error"]
            command.send_signal(signal.SIGINT)
            _, err = command.communicate(timeout=DEADLINE_S)
        assert (command.returncode, err) == (130, "")


def test_others_find_the_page_while_it_is_served(own_directories: Path) -> None:
    directory = Settings.load().runtime_dir
    assert served_page(directory) is None
    with sps_running("ui", "--no-browser", "--json") as first:
        assert first.stdout
        url = json.loads(first.stdout.readline())["url"]
        assert served_page(directory) == url
        file = RuntimePaths(directory).page
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with sps_running("ui", "--no-browser", "--json") as second:
            assert second.stdout
            latest = json.loads(second.stdout.readline())["url"]
            assert served_page(directory) == latest
            # The end of the first does not hide the second.
            first.send_signal(signal.SIGINT)
            first.communicate(timeout=DEADLINE_S)
            assert served_page(directory) == latest
            # What is left of a killed one leads to no other program.
            second.kill()
            _, err = second.communicate(timeout=DEADLINE_S)
            assert f"another page is served already, at {url}" in err
    assert file.exists()
    assert served_page(directory) is None
    with sps_running("ui", "--no-browser", "--json") as third:
        assert third.stdout
        address = json.loads(third.stdout.readline())["url"]
        assert served_page(directory) == address
        third.send_signal(signal.SIGTERM)
        _, err = third.communicate(timeout=DEADLINE_S)
    assert (err, file.exists()) == ("", False)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"url": 1, "server": {"pid": 1, "start": ""}}'])
def test_a_file_of_something_else_is_no_page(tmp_path: Path, text: str) -> None:
    RuntimePaths(tmp_path).page.write_text(text)
    assert served_page(tmp_path) is None


def test_the_browser_gets_a_private_file_and_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.new\nmv {opened}.new {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with sps_running("ui") as command:
        assert command.stdout
        line = command.stdout.readline()
        url = line.split()[-1]
        wait_until("the browser", opened.exists)
        assert json.loads(_answer(url, "api/actions")) == {"csrf_token": None}
        page = Path(opened.read_text().removeprefix("file://"))
        assert url in page.read_text()
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        assert url.partition("token=")[2] not in opened.read_text()
        command.send_signal(signal.SIGTERM)
        _, err = command.communicate(timeout=DEADLINE_S)
    assert (command.returncode, err, page.exists()) == (143, "", False)


def _answer(url: str, path: str) -> bytes:
    with urllib.request.urlopen(url.replace("?", f"{path}?"), timeout=DEADLINE_S) as answer:
        return bytes(answer.read())


def _deleted(url: str, name: str, cookie: dict[str, str]) -> Any:
    """Returns the refusal of an action of the page."""
    token = json.loads(_answer(url, "api/actions"))["csrf_token"]
    request = urllib.request.Request(
        url.partition("?")[0] + "api/actions/delete",
        json.dumps({"name": name}).encode(),
        {**cookie, "X-CSRF-Token": token, "Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=DEADLINE_S)
    with refused.value as answer:
        return json.loads(answer.read())


def _cookie_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=DEADLINE_S) as page:
        return str(page.headers["Set-Cookie"]).partition(";")[0]
