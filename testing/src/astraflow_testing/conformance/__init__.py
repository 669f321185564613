"""Suites that a plugin inherits to test that it implements its protocol."""
