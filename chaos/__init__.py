"""The chaos suite: what a target claims, on real clusters whose processes and links are broken meanwhile.

``pytest --pyargs psconform.suites.chaos --psconform-target FILE --psconform-profile ci``
"""
