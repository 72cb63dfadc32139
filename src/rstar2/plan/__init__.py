"""Plans what a recipe needs, before it runs: memory by part, what fits, what caches hold, days and device-hours.

Promise: the model is really built and sharded, and its activations really run, on the meta device; nothing else is
sent, downloaded or allocated. Every unknown is an `Assumptions` field that can be set.
May import: engine, config, models, rollout, data, train.
"""

from rstar2.plan.assumptions import Assumptions, MeanLength
from rstar2.plan.devices import DEVICE_NAMES, Device, find_device
from rstar2.plan.document import plan_document
from rstar2.plan.plan import RecipePlan, make_plan

__all__ = [
    "DEVICE_NAMES",
    "Assumptions",
    "Device",
    "MeanLength",
    "RecipePlan",
    "find_device",
    "make_plan",
    "plan_document",
]
