"""A minimal trainer on TensorFlow's own runtime: shard.py and trainer.py with parameter servers, replica.py without."""

import os

os.environ.setdefault(
    "TF_CPP_MIN_LOG_LEVEL", "2"
)  # before TensorFlow is imported, wherever that is: it greets on stderr
