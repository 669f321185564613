"""The command ``astraflow plugin new``: writes a distribution with a plugin that works."""
