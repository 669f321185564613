"""The command ``astraflow completion``: scripts that make shells complete command lines."""
