"""Writes the pages below `docs/reference/` from the code.

    scripts/docs --reference

`errors.toml` and `words.toml` have the facts that the code does not contain. `test_reference.py`
checks that the pages are up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.docs import api_page, commands_page, errors_page, events_page, servers_page, words_page

__all__ = ["DIRECTORY", "PAGES"]

DIRECTORY = Path(__file__).parents[2] / "docs" / "reference"
_PACKAGE = "shared_pathways_service"
_NOTE = "<!-- Written by `scripts/docs --reference`: change the code, or tests/docs/*.toml. -->\n\n"


def _api() -> str:
    return api_page.text(
        "The Python interface",
        "The names in `__all__` are public; everything else is private, and may change. Importing "
        "the package imports neither JAX nor Kubernetes, and starts nothing.",
        {
            f"{_PACKAGE}.isc_pathways": "The main module: `from shared_pathways_service import "
            "isc_pathways`.",
            _PACKAGE: "The same names, and the errors and events.",
        },
    )


def _elastic() -> str:
    return api_page.text(
        "The Python interface of elastic training",
        "[Elastic training](../elastic.md) explains it. Needs the extra `elastic`.",
        {f"{_PACKAGE}.elastic": ""},
    )


def _testing() -> str:
    return api_page.text(
        "The Python interface for tests",
        "Fault injection ([elastic training](../elastic.md#fault-injection-for-tests)), and a "
        "Kubernetes control plane on one machine ([the testbed](../testbed.md)).",
        {f"{_PACKAGE}.testing.faults": "", f"{_PACKAGE}.testing.testbed": ""},
    )


#: By file name: the function that makes the page.
PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands_page.text,
    "servers.md": servers_page.servers_text,
    "settings.md": servers_page.settings_text,
    "errors.md": errors_page.text,
    "events.md": events_page.text,
    "words.md": words_page.text,
    "api.md": _api,
    "api_elastic.md": _elastic,
    "api_testing.md": _testing,
}


def page(name: str) -> str:
    """Returns one page as it should be."""
    return _NOTE + PAGES[name]()


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for _name in PAGES:
        (DIRECTORY / _name).write_text(page(_name))
