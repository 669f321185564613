"""The models of a run: references, folders and their files."""
