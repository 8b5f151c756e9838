"""The conformance suite: what a target claims, on real clusters without faults.

``pytest --pyargs psconform.suites.conformance --psconform-target FILE --psconform-profile ci``
"""
