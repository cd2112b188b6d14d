"""Writes the page of state words: every word of every state that users see, with its meaning."""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from shared_pathways_service.api import checks
from shared_pathways_service.cluster_state.proxy_progress import Outcome
from shared_pathways_service.elastic.checkpoints import files
from shared_pathways_service.elastic.policy import slice_health
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.scheduling.book.states import (
    SliceState,
    TenantState,
    VirtualSliceState,
)
from shared_pathways_service.session import messages as session_messages
from tests.docs.markdown import code, page, table

__all__ = ["STATES", "text"]

_FACTS = Path(__file__).parent / "words.toml"


def _of(kind: type[enum.StrEnum]) -> tuple[str, ...]:
    return tuple(word.value for word in kind)


#: Words by the table of `words.toml` with their meanings.
STATES: Mapping[str, tuple[str, ...]] = {
    "slice": _of(SliceState),
    "virtual_slice": _of(VirtualSliceState),
    "tenant": _of(TenantState),
    "refusal": _of(messages.RefusalKind),
    "decision": _of(DecisionKind),
    "session": _of(session_messages.Phase),
    "proxy_end": _of(Outcome),
    "check": _of(checks.Outcome),
    "elastic_slice": _of(slice_health.SliceState),
    "checkpoint": get_args(files.State),
}


def text() -> str:
    """Returns the page.

    Raises:
      KeyError: A word is missing in `words.toml`, or an entry has no word.
    """
    facts: dict[str, Any] = tomllib.loads(_FACTS.read_text())
    terms = table(("word", "means"), sorted(facts["terms"].items()))
    parts = [facts["head"], "## Terms", terms]
    for name, words in STATES.items():
        known = facts[name]
        if known["words"].keys() != set(words):
            raise KeyError(f"words.toml, {name}: {sorted(known['words'].keys() ^ set(words))}")
        rows = [(code(word), known["words"][word]) for word in words]
        parts += [f"## {known['title']}", known["where"], table(("word", "means"), rows)]
    return page(parts)
