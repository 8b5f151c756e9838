"""``python -m psconform.reference_impl.health``: whether this container's task takes connections where TF_CONFIG says.

For the health check of an image. Exit status 0: it does, or there is nothing that it would take any for.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main() -> int:
    """Connect to the own address; what is behind it is not asked."""
    try:
        config = json.loads(os.environ["TF_CONFIG"])
        task = config["task"]
        host, _, port = config["cluster"][task["type"]][int(task["index"])].rpartition(":")
    except (KeyError, ValueError, IndexError, TypeError, AttributeError):
        return 0  # no task of a cluster
    try:
        with socket.create_connection((host, int(port)), timeout=2.0):
            return 0
    except (OSError, ValueError):
        return 1


if __name__ == "__main__":
    sys.exit(main())
