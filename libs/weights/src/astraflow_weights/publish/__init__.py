"""Versions on offer: the publisher, its store and its server."""
