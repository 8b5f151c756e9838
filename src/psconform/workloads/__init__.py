"""What is trained. The ledger itself lives in probe.py, because trainers must reach it without psconform."""

WORKLOADS = {
    "ledger": "one-hot gradients that turn the parameters into a count of what was applied",
}
"""Workloads by name, with one line each."""
