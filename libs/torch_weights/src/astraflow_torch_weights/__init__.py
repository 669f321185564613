"""Both ends of a broadcast of the weights, for transports and engines made of PyTorch."""
