"""The suites, installed as psconform.suites.conformance."""
