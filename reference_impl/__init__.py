"""A minimal ps/worker trainer on TensorFlow's own distributed runtime: shard.py, then trainer.py."""
