"""Writes and reads what a run saves: checkpoints to resume from, and exported models."""
