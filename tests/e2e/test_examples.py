"""The examples, run as a new user would, on a service of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.deadlines import deadline
from harness.embedded import embedded, nothing_left

if TYPE_CHECKING:
    import nbformat

EXAMPLES = Path(__file__).parents[2] / "examples"
#: (A notebook's client takes whole seconds.)
DEADLINE_S = int(deadline(400.0))


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """As if the package were installed."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    return dict(os.environ)


# (`test_demo` runs it, too, in less time than both take.)
@pytest.mark.thorough
def test_train_digits(environment: dict[str, str], own_directories: Path) -> None:
    with embedded(2):
        done = subprocess.run(
            [sys.executable, EXAMPLES / "train_digits.py"],
            env=environment,
            cwd=own_directories,
            check=False,
            timeout=DEADLINE_S,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert nothing_left()
    places = re.findall(r"slice_index=(\d) coords=\((\d), (\d), 0\)", done.stdout)
    square = [("0", "0"), ("1", "0"), ("0", "1"), ("1", "1")]
    assert sorted(places) == sorted((index, *at) for index in "01" for at in square)
    losses = [float(text) for text in re.findall(r"epoch +\d+: loss ([\d.]+)", done.stdout)]
    assert len(losses) == 15
    assert losses[-1] < 0.1 * losses[0]
    held_out = re.search(r"held-out accuracy: ([\d.]+)", done.stdout)
    assert held_out
    assert float(held_out[1]) >= 0.95


def notebook() -> nbformat.NotebookNode:
    # (Here, as the import takes two seconds of each collection.)
    import nbformat

    read = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    nbformat.validate(read)
    return read


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = [cell for cell in notebook().cells if cell.cell_type == "code"]
    assert cells
    assert not [cell for cell in cells if cell.outputs or cell.execution_count is not None]


@pytest.mark.usefixtures("environment")
# The kernel's messages pass through sockets that belong to the client's event loop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_the_notebook_in_a_real_kernel(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # (Here, as the import takes two seconds of each collection.)
    import nbclient

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(own_directories / name.lower()))
    read = notebook()
    client = nbclient.NotebookClient(
        read,
        timeout=DEADLINE_S,
        iopub_timeout=DEADLINE_S,  # after it, what a cell displays is dropped
        kernel_name="python3",
        resources={"metadata": {"path": str(own_directories)}},
    )
    with embedded(2):
        client.execute()
        assert nothing_left()
    connection, devices, function, closed = [
        cell.outputs[-1]["data"] for cell in read.cells if cell.cell_type == "code"
    ]
    assert "placed" in connection["text/html"]
    assert devices["text/plain"].count("(0, (") == devices["text/plain"].count("(1, (") == 4
    assert "('slice', 'chip')" in function["text/plain"]
    assert closed["text/plain"].startswith("((8, 8), [Cpu")


CELLS = (
    """
from shared_pathways_service import isc_pathways
import sys
assert "IPython" in sys.modules
connection = isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1})
""",
    "connection",
    "connection.start(); None",
    "connection.close()",
)


@pytest.mark.usefixtures("environment")
# The kernel's messages pass through sockets that belong to the client's event loop.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_displayed_connection_goes_with_what_happens(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # (Here, as the import takes two seconds of each collection.)
    import nbclient
    import nbformat

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(own_directories / name.lower()))
    shown = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    seen: list[str] = []

    class Client(nbclient.NotebookClient):  # type: ignore[misc]
        """Notes what displays are changed to, by later cells too."""

        def process_message(self, msg: dict[str, Any], *args: Any) -> Any:
            if msg["msg_type"] in {"display_data", "update_display_data"}:
                seen.append(msg["content"]["data"]["text/html"])
            return super().process_message(msg, *args)

    client = Client(
        shown,
        timeout=DEADLINE_S,
        iopub_timeout=DEADLINE_S,  # after it, what a cell displays is dropped
        kernel_name="python3",
        resources={"metadata": {"path": str(own_directories)}},
    )
    with embedded(1):
        client.execute()
        assert nothing_left()
    assert "<td>new</td>" in seen[0]
    assert any("<td>serve</td>" in text and "<td>placed</td><td>20" in text for text in seen)
    assert "<td>closed</td>" in seen[-1]
    # The one display of the one cell has the last of it.
    [output] = shown.cells[1].outputs
    assert output["data"]["text/html"] == seen[-1]
