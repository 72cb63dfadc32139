"""The update on one CUDA GPU: the model's forward and backward pass, in few kernels.

Promise: it computes what the embedded engine computes, from the same weights with the same roundings, and its
gradients. Every operation has a test against PyTorch's own.
"""
