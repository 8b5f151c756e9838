"""Consumers of verdicts: text for people, JSON for machines."""
