"""Fixtures, fakes and conformance suites for authors of components."""

from __future__ import annotations
