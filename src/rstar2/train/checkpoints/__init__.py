"""What a run saves: checkpoints that it resumes from, and exported models."""
