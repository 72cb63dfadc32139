"""Reports of a run: metrics, progress, traces."""
