"""Rollouts in several processes of one machine: an interpreter runs one conversation at a time, a GPU thousands.

Promise: a farm rolls out what it is asked to as one `Roller` would, with the same seeds; a worker that dies or hangs is
an `InfrastructureError` to the caller of its rollouts, and the others run the next requests; rollouts that are
cancelled, or given up because another worker died, are cancelled in the workers before the caller continues, and
nothing of them comes back; no worker outlives the process that started it.
"""

from rstar2.rollout.farm.farm import RollerFarm

__all__ = ["RollerFarm"]
