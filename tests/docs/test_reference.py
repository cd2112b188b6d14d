"""The reference pages are what the code says."""

from __future__ import annotations

import configparser

import pytest

from shared_pathways_service.cli import COMMANDS
from tests.docs import reference
from tests.docs.blocks import DOCS, ROOT, blocks_of
from tests.docs.commands_page import command_of


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_page_is_what_the_code_says(name: str) -> None:
    written = (reference.DIRECTORY / name).read_text()
    assert written == reference.page(name), f"{name} is old: run scripts/docs --reference"


def test_no_page_is_left_of_what_is_made_no_more() -> None:
    made = {file.name for file in reference.DIRECTORY.iterdir()}
    assert made == set(reference.PAGES)


def test_every_option_of_every_command_is_told() -> None:
    page = reference.page("commands.md")
    for name in COMMANDS:
        section = page.partition(f"\n## sps {name}\n")[2].partition("\n## ")[0]
        for param in command_of(name).params:
            if param.param_type_name == "option" and not param.hidden:
                assert param.help, (name, param.name)
                assert all(f"`{option}`" in section for option in param.opts), (name, param.opts)


def test_the_layers_are_those_that_are_checked() -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / ".importlinter")
    layers = settings["importlinter:contract:layers"]["layers"].strip()
    drawn = [block.text.strip() for block in blocks_of(DOCS / "architecture.md")]
    assert layers in drawn
