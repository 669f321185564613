"""Fixtures of fake plugins, for every test of the core."""

from astraflow_testing.fake_plugins import manifest, run_file, site

__all__ = ["manifest", "run_file", "site"]
