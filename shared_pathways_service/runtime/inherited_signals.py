"""Undoes what a process inherits about signals, and would make it deaf."""

from __future__ import annotations

import signal

__all__ = ["ALL_DEFAULTS", "unblock_signals"]

#: Signals that can have another effect than their default, for a new process.
ALL_DEFAULTS = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}


def unblock_signals() -> None:
    """Lets this thread, and threads and children that it starts, get all signals.

    A mask is inherited, also from a single thread of the program that started this one. And where
    SIGCHLD is ignored, the system forgets how children ended. Other ignored signals stay ignored:
    nohup(1) and shells do that on purpose.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
