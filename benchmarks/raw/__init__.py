"""What benchmarks/throughput.py measures: the tasks of the reference trainer, and of raw TensorFlow beside it."""
