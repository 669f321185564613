"""The command ``astraflow eval``."""
