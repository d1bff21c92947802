"""Layer 5: the command line. A layer below is imported only when a command needs it."""

from __future__ import annotations

import os
import sys
import traceback

from pmfl.errors import PmflError


def main() -> None:
    """The `pmfl` command: results on stdout, everything else on stderr, and an exit code that says how it went."""
    from pmfl.cli.commands import app

    try:
        app()
    except PmflError as error:
        if os.environ.get("PMFL_DEBUG"):
            traceback.print_exc()
        sys.stderr.write(f"error[{error.code}]: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except BrokenPipeError:  # `pmfl status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
