"""What runs in the interpreter that has verifiers. It needs nothing of AstraFlow."""
