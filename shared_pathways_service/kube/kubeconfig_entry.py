"""One cluster, user or context of a kubeconfig: its fields, by their types.

A value of another type is an error, as for kubectl: YAML has numbers and dates that look like text,
and a token 0123 would be sent as 83.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["NOT_SHOWN", "Entry"]

#: In a message, instead of a value that may be a secret.
NOT_SHOWN = "(not shown)"
_SECRET = ("token", "password", "id-token", "refresh-token", "client-secret")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One cluster, user or context. A field that is empty or null counts as absent.

    Attributes:
      kind: ``cluster``, ``user`` or ``context``.
      file: Its kubeconfig; paths in the entry are relative to the directory of this file.
    """

    kind: str
    name: str
    data: Mapping[str, Any] = dataclasses.field(repr=False)
    file: Path

    def text(self, field: str) -> str:
        """Returns the text of a field; empty: absent.

        Raises:
          InvalidRequestError: The field has another type.
        """
        value = self.data.get(field)
        if value is not None and not isinstance(value, str):
            raise self.invalid(field, "text: put it in quotes")
        return value or ""

    def header_text(self, field: str) -> str:
        """Returns the text of a field that is sent in a header, without blanks around it.

        Raises:
          InvalidRequestError: The field has another type, or several lines.
        """
        text = self.text(field).strip()
        if re.search(r"[\x00-\x1f\x7f]", text):
            raise self.invalid(field, "one line of text")
        return text

    def texts(self, field: str) -> list[str]:
        """Returns a list of texts; empty: absent. Raises as `text` does."""
        value = self.data.get(field) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.invalid(field, "a list of texts: put each in quotes")
        return value

    def mapping(self, field: str) -> Mapping[str, Any]:
        """Returns a mapping; empty: absent. Raises as `text` does."""
        value = self.data.get(field) or {}
        if not isinstance(value, Mapping):
            raise self.invalid(field, "fields with values")
        return value

    def flag(self, field: str) -> bool:
        """Returns a boolean; absent: False. Raises as `text` does."""
        value = self.data.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.invalid(field, "true or false, without quotes")
        return bool(value)

    def path(self, field: str) -> Path | None:
        """Returns the file that a field names; None: absent. Raises as `text` does."""
        text = self.text(field)
        return self.file.parent / Path(text).expanduser() if text else None

    def content(self, field: str) -> bytes:
        """Returns the content of FIELD-data, else of the file that FIELD names; empty: absent.

        (kubectl refuses both; the documentation of the format says that FIELD-data overrides.)

        Raises:
          InvalidRequestError: The content cannot be read.
        """
        # As Go does, base64 may be spread over lines.
        if encoded := re.sub(r"[\r\n]", "", self.text(f"{field}-data")):
            try:
                return base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError) as error:
                raise self.invalid(f"{field}-data", f"base64, not: {error}") from error
        path = self.path(field)
        try:
            return path.read_bytes() if path else b""
        except OSError as error:
            raise self.invalid(field, f"a file that can be read, not: {error}") from error

    def invalid(self, field: str, expected: str) -> InvalidRequestError:
        """Returns the error for a field of this entry."""
        value = self.data.get(field, "")
        if field in _SECRET or field.endswith("-data"):
            value = NOT_SHOWN
        return InvalidRequestError(
            f"{field} of {self.kind} {self.name}",
            value,
            expected,
            hint=f"correct it in {self.file}",
        )
