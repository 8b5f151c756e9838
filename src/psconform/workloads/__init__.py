"""What is trained. The ledger itself lives in probe.py, because trainers must reach it without psconform."""

WORKLOADS = {
    "ledger": "one-hot gradients that turn the parameters into a count of what was applied",
    "decayed-ledger": "the same with decay at the servers: a slot tells how old it is, so one read gives the order",
    "dense-ledger": "gradients of many magnitudes: shows which was compressed, clipped or rounded, and how",
    "quadratic": "a quadratic with known optimum and condition number: the rate of convergence against theory",
    "digits": "softmax regression or a small MLP on handwritten digits, against serial SGD",
}
"""Workloads by name, with one line each."""
