"""The seams: one small module per kind of component."""
