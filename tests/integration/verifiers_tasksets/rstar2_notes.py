"""A taskset of verifiers whose episodes share one tool server, and which fails where a test wants it to."""

import asyncio
import math

import verifiers.v1 as vf

__all__ = ["NotesTaskset"]


class NotesState(vf.State):
    note: str = ""


class NotesToolset(vf.Toolset[vf.SharedToolsetConfig, NotesState]):
    TOOL_PREFIX = "notes"

    @vf.tool
    async def keep(self, text: str) -> str:
        """Write a note, and read it back."""
        self.state.note = text
        await asyncio.sleep(0.2)  # calls of other episodes come in between
        return self.state.note


class NotesData(vf.TaskData):
    word: str = ""
    fault: str = ""


class NotesTask(vf.Task[NotesData, NotesState]):
    async def setup(self) -> None:
        if self.data.fault == "setup raises":
            raise ValueError("no such level")
        if self.data.fault == "setup hangs":
            await asyncio.Event().wait()

    @vf.reward
    async def kept(self, trace: vf.Trace) -> float:
        match self.data.fault:
            case "reward raises":
                raise ZeroDivisionError("by zero")
            case "reward hangs":
                await asyncio.Event().wait()
            case "reward is infinite":
                return math.inf
        return float(trace.state.note == self.data.word)


class NotesConfig(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class NotesTaskset(vf.Taskset[NotesTask, NotesConfig]):
    @classmethod
    def toolsets(cls, config: NotesConfig) -> list[vf.Toolset]:
        return [NotesToolset(config.tools)]

    def load(self) -> list[NotesTask]:
        return [NotesTask(NotesData(prompt=f"Keep {word}.", word=word), self.config.task) for word in "abcdefgh"]


if __name__ == "__main__":
    NotesToolset.run()
