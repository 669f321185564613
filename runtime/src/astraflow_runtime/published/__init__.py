"""The distributions that this project publishes."""
