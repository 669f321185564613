"""Commands about what is installed: plugins, environments, and why something cannot be used."""
