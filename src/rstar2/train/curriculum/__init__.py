"""What a run trains and is evaluated on, stage by stage."""
