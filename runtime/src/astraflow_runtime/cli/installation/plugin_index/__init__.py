"""An index of plugins: created from published reports of ``astraflow plugin check``, and searched."""
