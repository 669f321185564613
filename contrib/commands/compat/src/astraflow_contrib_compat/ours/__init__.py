"""Our RaaS behind the contract that a dataflow of the public protocol calls."""
