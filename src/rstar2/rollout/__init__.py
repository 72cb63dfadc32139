"""Many problems, many engines: the pure scheduler, its policies and the simulator.

Promise: a scheduler turns facts into decisions, without a clock or I/O; every rollout that was submitted ends exactly
once, also when engines die or join; the simulator runs the very policies that a live run does.
May import: records, sandbox, engine, grading, algo, config, models, agent.
"""

from rstar2.rollout.decisions import Cancel, Decision, Evict, KeepWaiting, Move, Resume, Start
from rstar2.rollout.facts import EngineSpeed, Fact, RolloutSpec
from rstar2.rollout.policies import POLICIES, make_policy
from rstar2.rollout.scheduler import Scheduler

__all__ = [
    "POLICIES",
    "Cancel",
    "Decision",
    "EngineSpeed",
    "Evict",
    "Fact",
    "KeepWaiting",
    "Move",
    "Resume",
    "RolloutSpec",
    "Scheduler",
    "Start",
    "make_policy",
]
