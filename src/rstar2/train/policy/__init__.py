"""The model that is trained: its weights, its adapters, and what engines serve of it."""
