"""What runs inside vLLM's workers: they import no other part of this package but names."""
