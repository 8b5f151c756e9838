"""Systems under test: the reference trainer, and whatever a target.toml describes."""
