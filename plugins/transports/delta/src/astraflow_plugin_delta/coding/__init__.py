"""How one changed block is coded: the frame, the codes, and the kernels that run them."""
