"""Benchmarks of single components, each against a shipped one of its kind; ``astraflow plugin bench`` runs them."""
