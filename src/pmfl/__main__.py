"""``python -m pmfl``."""

from pmfl.cli import main

main()
