"""Learns new weights from kept rollouts or conversations: packing, the forward pass, the loss, the optimizer."""
