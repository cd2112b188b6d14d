"""The description of a running testbed, in a file of its directory."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from shared_pathways_service.runtime.processes import Identity

__all__ = ["DESCRIPTION", "Description"]

#: Name of the file, which exists once the testbed is ready.
DESCRIPTION = "testbed.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """A running testbed.

    Attributes:
      server: The API server's URL.
      authority: The file with the certificate to trust.
      control: The socket that takes commands.
      process: The testbed's own process; all others end with it.
    """

    server: str
    authority: Path
    admin_token: str
    control: Path
    process: Identity

    @classmethod
    def read(cls, directory: Path) -> Description | None:
        """Reads a directory's description; None if there is none yet."""
        try:
            data = json.loads((directory / DESCRIPTION).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(
            server=data["server"],
            authority=Path(data["authority"]),
            admin_token=data["admin_token"],
            control=Path(data["control"]),
            process=Identity.from_json(data["process"]),
        )

    def write(self, directory: Path) -> None:
        """Writes it atomically, readable by its user only."""
        partial = directory / f"{DESCRIPTION}.partial"
        partial.touch(mode=0o600)
        data = {**dataclasses.asdict(self), "process": self.process.to_json()}
        partial.write_text(json.dumps(data, default=str), encoding="utf-8")
        partial.replace(directory / DESCRIPTION)
