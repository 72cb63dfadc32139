"""A taskset of verifiers with a tool server for each episode, and a state that the task reads after the calls."""

import verifiers.v1 as vf

__all__ = ["CountingTaskset"]

SCORED: list[vf.Trace] = []
"""The traces that the rewards saw, for tests in the same process."""


class CountingState(vf.State):
    num_calls: int = 0


class CountingToolset(vf.Toolset[vf.ToolsetConfig, CountingState]):
    TOOL_PREFIX = "count"

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        self.state.num_calls += 1
        if a < 0:
            raise ValueError("a must not be negative")
        return str(a + b)


class CountingConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class CountingData(vf.TaskData):
    answer: int


class CountingTask(vf.Task[CountingData, CountingState, CountingConfig]):
    @classmethod
    def toolsets(cls, config: CountingConfig) -> list[vf.Toolset]:
        return [CountingToolset(config.tools)]

    async def setup(self, runtime: vf.Runtime) -> None:
        await runtime.write("began.txt", b"yes")

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.info["began"] = (await runtime.read("began.txt")).decode()

    @vf.stop
    async def enough(self, trace: vf.Trace) -> bool:
        return len(trace.tool_messages) >= 4

    @vf.reward(weight=0.75)
    async def right(self, trace: vf.Trace) -> float:
        SCORED.append(trace)
        return float(trace.last_reply == str(self.data.answer))

    @vf.reward(weight=0.25)
    async def used_tool(self, trace: vf.Trace) -> float:
        return float(trace.state.num_calls > 0 and trace.info["began"] == "yes")

    @vf.metric
    async def calls(self, trace: vf.Trace) -> float:
        return float(trace.state.num_calls)


class CountingTasksetConfig(vf.TasksetConfig):
    task: CountingConfig = CountingConfig()
    num_tasks: int = 3


class CountingTaskset(vf.Taskset[CountingTask, CountingTasksetConfig]):
    def load(self) -> list[CountingTask]:
        return [
            CountingTask(
                CountingData(prompt=f"What is {number} + {number}?", system_prompt="Count.", answer=2 * number),
                self.config.task,
            )
            for number in range(1, self.config.num_tasks + 1)
        ]


if __name__ == "__main__":
    CountingToolset.run()
