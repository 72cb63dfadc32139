"""`[sandbox]`: what the model's programs may use, and where they run."""

from pydantic import Field

from rstar2.config.section import Section

MIB, GIB = 1 << 20, 1 << 30


class SandboxLimits(Section):
    """`[sandbox.limits]`: what one execution may use, all its child processes included."""

    wall_s: float = Field(
        10.0, gt=0, description="Seconds on the clock. An honest calculation of a rollout takes well under one."
    )
    cpu_s: float = Field(
        10.0, gt=0, description="Seconds of processor time. Equal to wall_s: one busy core for the whole time."
    )
    memory_bytes: int = Field(1 * GIB, ge=1, description="Memory in bytes. 1 GiB holds numpy, scipy, sympy and pandas.")
    num_processes: int = Field(
        32, ge=1, description="Processes and threads at one time. Numerical libraries start a handful of threads."
    )
    output_bytes: int = Field(
        1 * MIB,
        ge=1,
        description="Bytes of stdout, of stderr and of the last value, each. Far above what "
        "agent.max_tool_output_tokens lets through, so that head and tail of long output are both there to show.",
    )
    file_bytes: int = Field(32 * MIB, ge=1, description="Largest single file in the scratch directory, in bytes.")


class SandboxSection(Section):
    """`[sandbox]`: what the model's programs may use, and where they run."""

    base_url: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="Address of a running `rstar2 sandbox serve`. Left out, programs run on this machine's own cores.",
    )
    token_env: str | None = Field(
        None,
        min_length=1,
        description="Name of the environment variable that holds the service's bearer token; the token itself never "
        "stands in a recipe. Left out, the token of a service of this user on this machine is found. Only with "
        "base_url.",
    )
    num_slots: int | None = Field(
        None,
        ge=1,
        description="Programs younger than a tenth of a second that run at the same time on this machine; older ones "
        "get less of the cores and do not count. Left out, four for each core: one that waits must not idle it. Not "
        "with base_url, where the service decides.",
    )
    queue_s: float = Field(
        120.0,
        gt=0,
        description="Seconds a program may wait for a free slot before the call counts as an infrastructure fault. "
        "Long, because a training step sends its calls in bursts.",
    )
    limits: SandboxLimits = Field(SandboxLimits(), description="What one execution may use.")
