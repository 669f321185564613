"""Data policy ``ordering``: the order in which buffered rows are served."""
