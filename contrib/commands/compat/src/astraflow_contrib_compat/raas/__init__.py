"""A rollout service that speaks the public protocol, in front of our dataflow."""
