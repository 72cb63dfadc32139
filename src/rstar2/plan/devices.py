"""The accelerators that a plan can be made for, by their data sheets.

Rates are per device and, for links, per direction. Memory is in decimal gigabytes, as vendors print it.
"""

import os
from dataclasses import dataclass

from rstar2.errors import UserError
from rstar2.rollout.simulator import HARDWARE
from rstar2.rollout.simulator.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    hardware: Hardware
    link_bytes_per_s: float
    """The rate between the devices of one machine."""
    step_overhead_s: float = 0.001
    """The time for launching and scheduling in every decoding step of an engine."""

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    @property
    def memory_bytes(self) -> int:
        return int(self.hardware.memory_bytes)


_GPUS = {
    # NVLink or Infinity Fabric: half of the bidirectional rate of the data sheet.
    "mi300x": (HARDWARE["mi300x"], 448e9),
    "mi325x": (Hardware(256e9, 6.0e12, 1307e12), 448e9),
    "h100": (HARDWARE["h100"], 450e9),
    "h200": (HARDWARE["h200"], 450e9),
    "b200": (Hardware(180e9, 7.7e12, 2250e12), 900e9),
    "a100": (Hardware(80e9, 2.039e12, 312e12), 300e9),
    # PCIe 4.0 with 16 lanes.
    "l40s": (Hardware(48e9, 864e9, 362e12), 32e9),
    "rtx4090": (Hardware(24e9, 1008e9, 165e12), 32e9),
}
DEVICE_NAMES = (*_GPUS, "cpu")


def find_device(name: str) -> Device:
    if name == "cpu":
        return _this_machine()
    if name not in _GPUS:
        raise UserError(f"--hardware {name}: known are {', '.join(DEVICE_NAMES)}")
    hardware, link_bytes_per_s = _GPUS[name]
    return Device(name, hardware, link_bytes_per_s)


_CPU_MEMORY_BYTES_PER_S = 20e9
"""The bandwidth of a laptop's single memory channel."""
_CORE_FLOPS_PER_S = 96e9
"""The speed of one core in float32: two AVX2 multiply-adds a cycle, at the 3 GHz of a laptop's long runs."""
_CPU_STEP_OVERHEAD_S = 0.003
"""The time of a step of the embedded engine besides its arithmetic. All three are rough: `rstar2 simulate --measure`
measures an engine on this machine."""


def _this_machine() -> Device:
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    hardware = Hardware(
        memory_bytes=float(memory_bytes),
        bandwidth_bytes_per_s=_CPU_MEMORY_BYTES_PER_S,
        flops_per_s=_CORE_FLOPS_PER_S * len(os.sched_getaffinity(0)),
    )
    return Device("cpu", hardware, _CPU_MEMORY_BYTES_PER_S, _CPU_STEP_OVERHEAD_S)
