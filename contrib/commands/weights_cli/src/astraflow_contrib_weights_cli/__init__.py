"""The command ``astraflow weights``: the published versions of a run."""
