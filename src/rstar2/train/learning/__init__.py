"""From kept rollouts, or conversations, to new weights: packing, the forward pass, the loss, the optimizer."""
