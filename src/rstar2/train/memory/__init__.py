"""How one GPU's memory is divided between weights, optimizer, activations and the engine's cache."""
