"""Fixtures of fake plugins."""

from astraflow_testing.fake_plugins import manifest, run_file, site

__all__ = ["manifest", "run_file", "site"]
