"""Benchmarks of single components, each beside a shipped one of its kind; ``astraflow plugin bench`` runs them."""
