"""What a run reports: metrics, progress, traces."""
