"""The command ``astraflow tinker``: a server that an unmodified Tinker client drives."""
