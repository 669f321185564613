"""Benchmarks that need a GPU, and a report of them for ``make gpu``."""
