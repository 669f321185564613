"""Losses that leave out tokens or rows whose probability moved too far, instead of clipping a ratio."""
