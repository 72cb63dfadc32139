"""A taskset of verifiers whose environment speaks for the user, and opens the conversation."""

import verifiers.v1 as vf

__all__ = ["DialogEnv", "DialogTaskset"]

HEARD: list[str | None] = []
"""What the user heard, for tests in the same process; None where the exchange had ended."""
SCORED: list[vf.Trace] = []


class DialogTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def answered(self, trace: vf.Trace) -> float:
        SCORED.append(trace)
        return len(trace.assistant_messages) / 3


class DialogTaskset(vf.Taskset[DialogTask]):
    def load(self) -> list[DialogTask]:
        return [DialogTask(vf.TaskData(prompt=None), self.config.task)]


class DialogEnv(vf.SingleAgentEnv):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as talk:
            for line in ("One?", "Two?", "Three?"):
                segment = await talk.turn(line)
                HEARD.append(None if segment.terminated else segment.last_reply)
                if segment.terminated:
                    return
