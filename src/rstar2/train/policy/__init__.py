"""The model that is trained: its weights, its adapters, and the weights that engines serve."""
