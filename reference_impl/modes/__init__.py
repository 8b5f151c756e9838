"""Modes of training beside plain sync and async SGD; setup.py chooses among them."""
