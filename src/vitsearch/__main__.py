"""`python -m vitsearch` is the command `vitsearch`."""

from vitsearch.cli import run

run()
