"""Fixtures, fakes and conformance suites for those who build and test components."""

from __future__ import annotations
