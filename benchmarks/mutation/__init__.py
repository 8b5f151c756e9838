"""What benchmarks/mutants.py is made of: places in a source, a copy to change, tests that run in it."""
