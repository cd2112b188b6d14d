"""What near ends report, remembered."""

from __future__ import annotations

from shared_pathways_service.tunnel.link.near_end import LinkState

__all__ = ["Heard"]


class Heard:
    """What a near end reported."""

    def __init__(self) -> None:
        self.states: list[tuple[LinkState, str]] = []
        self.failed_dials: list[tuple[int, str]] = []

    @staticmethod
    def is_final(error: Exception) -> bool:
        return isinstance(error, PermissionError)

    def link_changed(self, state: LinkState, reason: str) -> None:
        self.states.append((state, reason))

    def dial_failed(self, attempt: int, reason: str) -> None:
        self.failed_dials.append((attempt, reason))
