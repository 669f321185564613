"""The dataflow over HTTP: routes, waiting requests, event streams and metrics."""
