"""Notebook sessions: a tree of parked forks, one for each state that a cell left behind."""
