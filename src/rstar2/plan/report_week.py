"""The report's own run, to hold a plan against: Qwen3-14B-Base on 64 MI300X, 510 steps in one week."""

from dataclasses import dataclass

from rstar2.config import Recipe
from rstar2.plan.devices import Device
from rstar2.plan.layout import Layout

REPORT_MODELS = ("Qwen/Qwen3-14B-Base", "qwen3-14b-base")
REPORT_DEVICES = 64
REPORT_STEPS = 510
REPORT_DAYS = 7.0
REPORT_SET_SIZES = {"function_calls": 165_000, "instructions": 30_000, "chat": 27_000, "rl": 42_000}
"""Of the sets that the recipe of that run names; its files are made by whoever runs it."""


@dataclass(frozen=True, slots=True)
class WeekComparison:
    planned_days: float
    """Of all stages with their filters and evaluations; the warm-up is not part of the report's week."""
    report_days: float = REPORT_DAYS

    @property
    def ratio(self) -> float:
        return self.planned_days / self.report_days


def is_report_run(recipe: Recipe, layout: Layout, device: Device) -> bool:
    return (
        recipe.model.name in REPORT_MODELS
        and layout.num_devices == REPORT_DEVICES
        and device.name == "mi300x"
        and sum(stage.steps for stage in recipe.stages) == REPORT_STEPS
    )
