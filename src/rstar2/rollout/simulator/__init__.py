"""A discrete-event simulator of rollouts on engines, running the policies of `rstar2.rollout.policies` unchanged.

Promise: the same workload, policy, engines and seed give the same result; no policy sees a length in advance.
"""

from rstar2.rollout.simulator.bounds import informed_bound_s, lower_bound_s
from rstar2.rollout.simulator.fit import fit_run
from rstar2.rollout.simulator.hardware import HARDWARE, QWEN3_14B, EngineModel, read_measured, roofline, write_measured
from rstar2.rollout.simulator.measure import MeasurePlan, measure
from rstar2.rollout.simulator.simulate import Fleet, SimulationResult, simulate
from rstar2.rollout.simulator.tree_workload import as_trees
from rstar2.rollout.simulator.workload import SHAPES, PlannedRollout, PlannedTurn, Workload, generate, replay

__all__ = [
    "HARDWARE",
    "QWEN3_14B",
    "SHAPES",
    "EngineModel",
    "Fleet",
    "MeasurePlan",
    "PlannedRollout",
    "PlannedTurn",
    "SimulationResult",
    "Workload",
    "as_trees",
    "fit_run",
    "generate",
    "informed_bound_s",
    "lower_bound_s",
    "measure",
    "read_measured",
    "replay",
    "roofline",
    "simulate",
    "write_measured",
]
