"""Checkpoints, and tasks that go on after the death of any of them."""
