"""Event files -> History: reading, checking and indexing what a run recorded."""
