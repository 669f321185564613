"""A small model plays a text game of ours."""
