"""A minimal trainer on TensorFlow's own runtime: ps.py and worker.py train; modes/ and recovery/ build on them."""
