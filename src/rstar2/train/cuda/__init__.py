"""The update on one CUDA GPU: the model's pass, forward and backward, in few kernels.

Promise: it computes what the embedded engine computes, with the same weights and the same roundings, and the gradients
of that. Every operation has a test against PyTorch's own.
"""
