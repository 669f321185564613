"""Versions delivered straight into engines: both halves, and the server where engines ask."""
