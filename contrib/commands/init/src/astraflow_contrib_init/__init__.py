"""The command ``astraflow init``: writes the commented configuration of a first run."""
