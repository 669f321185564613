"""The command ``astraflow plugin``: writes a distribution with a plugin that works, checks and measures one."""
