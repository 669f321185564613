"""What is installed: plugins and distributions, what they need and where they came from."""
