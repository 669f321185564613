"""What `make release` does, one step a module."""
