"""Losses that scale the advantages of a group, or of the batch, by what was earned."""
