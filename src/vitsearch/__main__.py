"""`python -m vitsearch` is the command `vitsearch`. Ctrl-C has its one line from the first import on."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType

INTERRUPTED = 130


def run() -> None:
    """Load the command line, then run it."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # ignored where a shell put us aside
    if usual:
        signal.signal(signal.SIGINT, leave)
    from vitsearch.cli import main

    if usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = main()
    if usual:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done and said
    sys.exit(code)


def leave(number: int, frame: FrameType | None) -> None:
    """Nothing has been written yet, and an exception in the middle of an import can take any form."""
    with suppress(OSError):  # stderr may be closed
        os.write(2, b"vitsearch: interrupted before it began\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
