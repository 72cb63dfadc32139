"""Rollouts of one problem as a tree: which leaf continues which, and from where."""

from rstar2.rollout.trees.policies import ForkFacts, Leaf, Point
from rstar2.rollout.trees.settings import TreeSettings

__all__ = ["ForkFacts", "Leaf", "Point", "TreeSettings"]
