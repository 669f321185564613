"""Data policy: rows of earlier batches are trained on again."""
