"""The engines of a RaaS: their processes, their replicas, and the versions that they serve."""
