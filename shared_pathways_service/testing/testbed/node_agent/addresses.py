"""Assigns loopback addresses: one per pod, so that their ports never collide."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping

from shared_pathways_service.testing.testbed.errors import TestbedError

__all__ = ["AddressBook"]

#: A testbed reserves blocks 127.1.N.0/24 by binding this port of each block's first address: other
#: testbeds on this machine use other blocks, and the end of the process frees its blocks.
_CLAIM_PORT = 29_999
_BLOCKS = 256
_HOST_NAME = (
    r"(?<![\w.-])([a-z0-9][-a-z0-9]*)\.({services})"
    r"(?:\.{namespace}(?:\.svc(?:\.cluster\.local)?)?)?(?![\w-])"
)


class AddressBook:
    """Assigns addresses in 127.1.0.0/16.

    A pod with a host name (``NAME.SERVICE``) gets that name's fixed address; others a new one.
    """

    def __init__(self) -> None:
        self._claims: list[socket.socket] = []
        self._free: list[str] = []
        self._named: dict[tuple[str, str], str] = {}

    def close(self) -> None:
        """Frees the blocks."""
        for claim in self._claims:
            claim.close()

    def take(self) -> str:
        """Returns an unused address.

        Raises:
          TestbedError: No address is left.
        """
        if not self._free:
            self._claim_block()
        # The address that was freed first: stale users of it get no answer for a long time.
        return self._free.pop(0)

    def give_back(self, address: str) -> None:
        """Frees an address that `take` returned."""
        self._free.append(address)

    def of_name(self, namespace: str, name: str) -> str:
        """Returns the address of a host name, e.g. ``a-0-0.a``: always the same one."""
        key = namespace, name
        if key not in self._named:
            self._named[key] = self.take()
        return self._named[key]

    def of_names_in(
        self, texts: Iterable[str], namespace: str, services: Iterable[str]
    ) -> Mapping[str, str]:
        """Returns the addresses of all host names (``NAME.SERVICE``) in texts, by name."""
        known = "|".join(map(re.escape, services))
        if not known:
            return {}
        form = re.compile(_HOST_NAME.format(services=known, namespace=re.escape(namespace)))
        return {
            match[0]: self.of_name(namespace, f"{match[1]}.{match[2]}")
            for text in texts
            for match in form.finditer(text)
        }

    def forget(self, namespace: str) -> None:
        """Frees the addresses of a namespace's host names."""
        for key in [key for key in self._named if key[0] == namespace]:
            self.give_back(self._named.pop(key))

    def _claim_block(self) -> None:
        for block in range(_BLOCKS):
            claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                claim.bind((f"127.1.{block}.0", _CLAIM_PORT))
            except OSError:
                claim.close()
                continue
            self._claims.append(claim)
            self._free += [f"127.1.{block}.{number}" for number in range(1, 255)]
            return
        raise TestbedError("no address of 127.1.0.0/16 is left for a pod")
