"""An index of plugins: made of published reports of ``astraflow plugin check``, and searched."""
