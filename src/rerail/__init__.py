"""Debug training runs: graded practice, and the checks behind it."""

__version__ = "0.1.0"
