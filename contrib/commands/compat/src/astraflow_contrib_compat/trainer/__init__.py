"""The routes of a dataflow that a trainer of the public protocol calls, in front of our dataflow."""
