"""Notebooks in JupyterLab, in Chromium: the table, its button, and a restart of the kernel."""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Error, Locator, Page, expect

from harness.chromium import chromium, skip_without_chromium
from harness.embedded import DEADLINE_S, KIND, embedded, eventually, free_slices, nothing_left
from harness.jupyterlab import JupyterLab
from harness.processes import is_alive
from harness.programs import noting_logs
from tests.conftest import nothing_left_behind, private_directories

_LOAD = "%load_ext shared_pathways_service"
_CONNECT = f"%sps connect {KIND}=1"
_COMPUTE = "import jax\nprint('sum', float(jax.numpy.arange(4).sum()), 'of', len(jax.devices()))"
_PROCESS = "import os\nprint('process', os.getpid())"
_DEADLINE_MS = DEADLINE_S * 1000
#: Milliseconds for each thing that is noted of a page after a failure.
_NOTE_MS = 10_000
#: Number of lines of JupyterLab's log in a failure.
_NOTED_LINES = 40


@pytest.fixture(scope="module")
def lab() -> Iterator[JupyterLab]:
    """JupyterLab and an embedded service with one slice; fails if they leave processes behind."""
    skip_without_chromium()
    with (
        pytest.MonkeyPatch.context() as patch,
        private_directories(patch) as root,
        nothing_left_behind(patch),
        embedded(1),
        JupyterLab(root) as lab,
    ):
        yield lab


@pytest.fixture
def own_directories(lab: JupyterLab) -> Path:
    """The directories of the service that the notebooks use."""
    return lab.root


# (After the service, whose start uses asyncio: Playwright's event loop then occupies this thread.)
@pytest.fixture(scope="module")
def browser(lab: JupyterLab) -> Iterator[Browser]:
    """A browser without a window."""
    with chromium() as browser:
        yield browser


@contextlib.contextmanager
def opened(lab: JupyterLab, browser: Browser, directory: Path, *cells: str) -> Iterator[Page]:
    """Opens a new notebook; an error of the block gets the page's text and the servers' logs.

    Args:
      lab: Server of the notebook.
      browser: Browser that shows it.
      directory: Directory of a failure's screenshot; its name is the notebook's, too.
      cells: Code of the cells.
    """
    address = lab.add_notebook(directory.name, cells)
    # (Tall enough to show all cells.)
    with browser.new_context(viewport={"width": 1280, "height": 1200}) as context, noting_logs():
        context.set_default_timeout(_DEADLINE_MS)
        page = context.new_page()
        try:
            page.goto(address)
            # (Before its kernel runs, JupyterLab may ask which kernel is to run a cell.)
            shown(idle(page))
            yield page
        except Exception as error:
            page.set_default_timeout(_NOTE_MS)
            with contextlib.suppress(Error):
                screenshot = directory / "jupyterlab.png"
                page.screenshot(path=screenshot)
                error.add_note(f"== {screenshot}\n{page.locator('body').inner_text()}")
            error.add_note("\n".join(["== JupyterLab", *lab.log[-_NOTED_LINES:]]))
            raise


def shown(found: Locator) -> None:
    expect(found).to_be_visible(timeout=_DEADLINE_MS)


def idle(page: Page) -> Locator:
    """The status bar's text for a kernel that runs and is idle."""
    return page.get_by_text(re.compile(r"\| Idle"))


def output(page: Page) -> Locator:
    return page.locator(".jp-Notebook .jp-OutputArea")


def run_cell(page: Page, number: int) -> None:
    page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".cm-content").click()
    page.keyboard.press("Control+Enter")


def restart_kernel(page: Page) -> None:
    """Restarts the kernel as a user does, and waits for the server's answer."""
    page.locator('[data-command="notebook:restart-kernel"]').click()
    confirm = page.get_by_role("button", name="Confirm Kernel Restart", exact=True)
    with page.expect_response(re.compile(r"/api/kernels/[^/]+/restart")) as answer:
        confirm.click()
    assert answer.value.ok


def beside(look: Callable[[], object]) -> object:
    """Calls a function in a thread without Playwright's event loop."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(look).result()


def test_the_table_shows_a_connection_and_its_button_releases_it(
    lab: JupyterLab, browser: Browser, tmp_path: Path
) -> None:
    with opened(lab, browser, tmp_path, _LOAD, _CONNECT, _COMPUTE) as page:
        for number in range(3):
            run_cell(page, number)
        shown(output(page).get_by_text("sum 6.0 of 4"))
        shown(output(page).get_by_role("cell", name="placed", exact=True))
        assert beside(free_slices) == 0
        button = output(page).get_by_role("button", name="Release", exact=True)
        button.click()
        shown(output(page).get_by_role("cell", name="closed", exact=True))
        expect(button).to_have_count(0, timeout=_DEADLINE_MS)
        beside(lambda: eventually(nothing_left, "the button to release the slices"))


@pytest.mark.thorough
def test_a_restarted_kernel_leaves_nothing_behind(
    lab: JupyterLab, browser: Browser, tmp_path: Path
) -> None:
    with opened(lab, browser, tmp_path, _LOAD, _CONNECT, _PROCESS) as page:
        for number in range(3):
            run_cell(page, number)
        printed = output(page).get_by_text(re.compile(r"process \d+"))
        shown(printed)
        shown(output(page).get_by_role("cell", name="placed", exact=True))
        assert beside(free_slices) == 0
        pid = re.sub(r"\D", "", printed.inner_text())
        kernel = psutil.Process(int(pid))
        processes = [kernel, *kernel.children(recursive=True)]
        restart_kernel(page)
        beside(lambda: eventually(nothing_left, "the kernel's slices to be released"))
        eventually(lambda: not any(map(is_alive, processes)), "the kernel's processes to end")
        # The notebook goes on with a new kernel.
        shown(idle(page))
        run_cell(page, 2)
        shown(output(page).get_by_text(re.compile(rf"process (?!{pid}\b)\d+")))
