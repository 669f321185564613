"""Both ends of a broadcast of the weights, for transports and engines based on PyTorch."""
