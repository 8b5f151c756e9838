"""``psconform`` and ``python -m psconform``: Ctrl-C while the rest is still being imported is no traceback either."""

from __future__ import annotations

import sys


def main() -> None:
    """Import and run the command line."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("psconform: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
