"""Filters and checks before a run or a stage: the difficulty filter, and whether call tags can be learnt."""
