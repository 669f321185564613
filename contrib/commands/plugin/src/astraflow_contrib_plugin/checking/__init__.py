"""``astraflow plugin check``: what others may expect of a plugin, examined one after the other."""
