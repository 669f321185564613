"""Structured logs of services, and their exit with the process that started them."""
