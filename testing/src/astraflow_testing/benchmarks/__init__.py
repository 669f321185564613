"""Benchmarks of single components, each compared with an included one of its kind; ``astraflow plugin bench`` runs them."""
