"""Suites that a plugin inherits to show that it keeps the promises of its seam."""
