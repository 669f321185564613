"""What trainers based on PyTorch share: models, gradients of mini-batches, optimizers, exports."""
