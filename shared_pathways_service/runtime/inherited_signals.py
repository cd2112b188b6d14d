"""Resets signals that a process inherits as blocked or ignored, and would not get otherwise."""

from __future__ import annotations

import signal

__all__ = ["RESETTABLE_SIGNALS", "reset_inherited_signals"]

#: Signals that a new process can inherit as ignored.
RESETTABLE_SIGNALS = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}


def reset_inherited_signals() -> None:
    """Unblocks all signals for this thread, and for threads and children that it starts.

    A mask is inherited, also from a single thread of the program that started this one. And where
    SIGCHLD is ignored, the system forgets how children ended: it gets its default effect. Other
    ignored signals stay ignored, as nohup(1) and shells do that on purpose.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
