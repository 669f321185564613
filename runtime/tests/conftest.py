"""Fixtures of fake plugins, for every test of the runtime."""

from astraflow_testing.fake_plugins import manifest, run_file, site

__all__ = ["manifest", "run_file", "site"]
