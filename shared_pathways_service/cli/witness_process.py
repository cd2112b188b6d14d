"""Reports which signals its process group got; `group_witness` starts it by this file's path.

All signals are blocked in it from its first moment, so they stay pending until it is asked. It
imports nothing of the package, because it must start fast, and ends with its standard input.
"""

from __future__ import annotations

import os
import signal

__all__ = ["REPLY_BYTES", "main"]

#: Length of a reply: a bit mask, whose bit n stands for signal n.
REPLY_BYTES = 16


def main() -> None:
    """Answers each byte of its standard input with the signals since the last one."""
    while os.read(0, 1):
        received = 0
        while pending := signal.sigpending():
            for number in pending:
                signal.sigwait({number})
                received |= 1 << number
        os.write(1, received.to_bytes(REPLY_BYTES, "little"))


if __name__ == "__main__":
    main()
