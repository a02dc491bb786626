"""The examples of the generated page run where they stand, in docstrings."""

collect_ignore = ["objectives.md"]
