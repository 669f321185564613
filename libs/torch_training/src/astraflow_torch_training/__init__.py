"""What trainers made of PyTorch share: models, gradients of mini-batches, optimizers, exports."""
