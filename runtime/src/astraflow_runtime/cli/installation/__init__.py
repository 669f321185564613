"""Commands about the installation: plugins, environments, and why something cannot be used."""
