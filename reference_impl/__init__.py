"""A minimal trainer on TensorFlow's own runtime: shard.py and trainer.py with parameter servers, replica.py without."""

import os

# Before TensorFlow is imported, wherever that is. It greets on stderr; and it imports Keras, with all that Keras finds,
# up to scikit-learn and Matplotlib (half of the time that a task takes to start), unless told to take an older one.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
