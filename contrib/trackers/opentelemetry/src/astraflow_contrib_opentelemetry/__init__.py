"""The tracker ``opentelemetry``."""
