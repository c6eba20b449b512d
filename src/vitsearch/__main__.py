"""The command `vitsearch`, and `python -m vitsearch`."""

from __future__ import annotations

import sys


def run() -> None:
    try:
        from vitsearch import cli  # here, so that Ctrl-C while it loads is one line too
    except KeyboardInterrupt:
        sys.stderr.write("vitsearch: interrupted\n")
        sys.exit(130)
    cli.run()


if __name__ == "__main__":
    run()
