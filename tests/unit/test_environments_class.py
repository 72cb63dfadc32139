"""Classes of the user's as environments: those written for TRL, and those derived from `Task`."""

import asyncio
import random
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from own_tasks import call, opened, problem, section, trace

from rstar2.environments import Judgement, Services, Task
from rstar2.environments.begin import asked_problem
from rstar2.environments.of_object import source_of_object
from rstar2.environments.source import EnvironmentSource
from rstar2.errors import EnvironmentCodeError, UserError
from rstar2.records import ToolStatus, Verdict


class Counter:
    """The shape of TRL's documentation: the task is drawn in `reset`, and the object scores itself."""

    num_made = 0

    def __init__(self) -> None:
        type(self).num_made += 1

    def reset(self, **_row: Any) -> str | None:
        self.count = 0
        self.goal = random.Random(7).randint(1, 6)
        return f"Count to {self.goal}."

    def get_reward(self) -> float:
        return float(self.count == self.goal)

    def add(self, step: int) -> int:
        """
        Adds to the count.

        Args:
            step: What to add.

        Returns:
            The new count.
        """
        if step < 0:
            raise ValueError("The count cannot fall.")
        self.count += step
        return self.count


class FromRow:
    """The shape with a data set: a column is a parameter of `reset`, and nothing is returned."""

    def reset(self, goal: int, **_row: Any) -> None:
        self.goal = goal

    async def get_reward(self) -> float:
        await asyncio.sleep(0)
        return float(self.goal)

    @staticmethod
    def double(value: int) -> int:
        """Doubles.

        Args:
            value: A number.
        """
        return 2 * value

    async def wait(self) -> str:
        """Waits."""
        await asyncio.sleep(0)
        return "waited"

    @property
    def not_a_tool(self) -> int:
        raise AssertionError("a property is not evaluated")


class WithoutReward:
    """The shape of TRL's examples: a reward function reads an attribute of the object."""

    reward = 0.0

    def reset(self, **_row: Any) -> None:
        self.reward = 0.0

    def win(self) -> str:
        """Wins."""
        self.reward = 0.75
        return "won"


async def test_a_trl_class_that_draws_its_own_task() -> None:
    async with opened(Counter) as environment:
        opening = environment.opening(problem({}))
        assert opening.messages == ({"role": "user", "content": ""},)
        assert [tool.name for tool in opening.tools] == ["add"]
        assert opening.tools[0].parameters["properties"] == {"step": {"type": "integer", "description": "What to add."}}
        assert environment.scores_truncated
        episode = await environment.begin(problem({}))
        goal = int(episode.observation.removeprefix("Count to ").removesuffix("."))
        assert (await call(episode, "add", step=goal)).text == str(goal)
        refused = await call(episode, "add", step=-1)
        assert (refused.status, refused.text) == (ToolStatus.RAISED, "The count cannot fall.")
        assert not episode.is_over
        assert await episode.reply("done") is None
        judgement = await episode.score(trace("done"))
        assert (judgement.score, judgement.verdict, judgement.format_penalty) == (1.0, None, 0.0)
        await episode.close()


async def test_a_trl_class_with_a_data_set() -> None:
    row = {"prompt": [{"role": "user", "content": "Reach it."}], "goal": 3, "other": 1}
    async with opened(FromRow) as environment:
        assert environment.opening(problem(row)).messages == ({"role": "user", "content": "Reach it."},)
        assert [tool.name for tool in environment.opening(problem(row)).tools] == ["double", "wait"]
        episode = await environment.begin(problem(row))
        assert episode.observation == ""
        assert (await call(episode, "double", value=4)).text == "8"
        assert (await call(episode, "wait")).text == "waited"
        assert (await episode.score(trace())).score == 3.0
        with pytest.raises(
            UserError, match=r"test_environments_class.py, line \d+: FromRow.reset needs the column 'go"
        ):
            environment.opening(problem({"prompt": "x"}))
        await episode.close()


class Typed(Task):
    def reset(self, colour: str, size: "Missing") -> str:  # type: ignore[name-defined]  # noqa: F821
        return f"{colour} {size}"

    def get_reward(self) -> float:
        return 1.0


class Sized(Task):
    async def reset(self, size: float, *, names: list[str] | None = None) -> str:
        return f"{size} {names}"

    def get_reward(self) -> float:
        return 1.0


async def test_a_row_must_have_the_types_that_reset_names() -> None:
    async with opened(Sized) as environment:
        for row in ({"size": 3, "other": {}}, {"size": 0.5, "names": ["a"]}):
            await (await environment.begin(problem(row))).close()
        for row, refused in (
            ({"size": "large"}, r"problem \S+: .*class.py, line \d+: Sized.reset cannot take 'large' as column size: "),
            ({"size": 1, "names": ["a", 2]}, r"cannot take \['a', 2\] as column names.1: "),
        ):
            with pytest.raises(UserError, match=refused):
                environment.opening(problem(row))
    async with opened(Typed) as environment:  # a hint that cannot be read: none of them is checked
        environment.opening(problem({"colour": 5, "size": 1}))


@dataclass
class Grid:
    width: int

    def __post_init__(self) -> None:
        if self.width > 8:
            raise KeyError(self.width)


class OnGrid(Sized):
    async def reset(self, grid: Grid, title: str = None) -> str:  # type: ignore[assignment, override]  # noqa: RUF013
        return f"{grid} {title}"


async def test_a_column_may_be_missing_as_none_where_reset_has_none() -> None:
    async with opened(OnGrid) as environment:
        environment.opening(problem({"grid": {"width": 1}, "title": None}))


async def test_a_type_of_the_users_own_may_raise_anything() -> None:
    async with opened(OnGrid) as environment:
        with pytest.raises(UserError, match=r"OnGrid.reset cannot take {'width': 9} as column grid: KeyError: 9$"):
            environment.opening(problem({"grid": {"width": 9}}))


class Spoken(Sized):
    def system_text(self) -> str:  # type: ignore[override]
        return "Be brief."


async def test_a_system_text_is_a_text() -> None:
    with pytest.raises(UserError, match=r"Spoken.system_text must be a text, not a method"):
        async with opened(Spoken):
            pass


async def test_what_a_person_asks_has_no_name_in_errors() -> None:
    async with opened(Sized) as environment:
        with pytest.raises(UserError, match=r"^/.*: Sized.reset needs the column 'size'; the row has prompt"):
            environment.opening(asked_problem("How large?"))


async def test_objects_of_a_trl_class_are_used_again_and_never_by_two_episodes() -> None:
    Counter.num_made = 0
    async with opened(Counter) as environment:
        for _ in range(3):
            together = [await environment.begin(problem({})) for _ in range(2)]
            assert together[0].task is not together[1].task  # type: ignore[attr-defined]
            for episode in together:
                await call(episode, "add", step=1)
                assert episode.task.count == 1  # type: ignore[attr-defined]
                await episode.close()
                await episode.close()
        assert Counter.num_made == 2


def test_a_class_of_trl_without_rows_has_numbered_ones() -> None:
    rows = source_of_object(Counter, section()).rows
    assert rows is not None
    assert [row["episode"] for row in rows(section())] == list(range(1000))


async def test_a_factory_makes_objects() -> None:
    def make() -> Counter:
        return Counter()

    async with opened(make) as environment:
        assert [tool.name for tool in environment.opening(problem({})).tools] == ["add"]


class Order(Task):
    """Everything that a `Task` may have."""

    system_text = "You take orders."
    closed: ClassVar[list[str]] = []

    def __init__(self, greeting: str, services: Services) -> None:
        self.greeting = greeting
        self.services = services
        self.ordered: list[str] = []

    @staticmethod
    def rows(num: int = 2) -> Iterator[dict[str, Any]]:
        yield from ({"question": f"Order {n}", "dishes": ["soup"] * n} for n in range(num))

    def reset(self, dishes: list[str]) -> str:
        self.dishes = dishes
        dishes.append("tea")
        return f" {self.greeting}"

    def order(self, dish: str) -> None:
        """Orders a dish."""
        self.ordered.append(dish)
        self.is_over = dish == "the bill"

    async def reply(self, said: str) -> str | None:
        return f"Did you say {said!r}?" if "?" in said else None

    def get_reward(self, trace: Any) -> dict[str, float]:
        return {"dishes": len(self.ordered) / 2, "words": 0.25 * len(trace.turns)}

    def solution(self, row: Any) -> str:
        return f"I order {row['dishes']}"

    def close(self) -> None:
        self.closed.append(self.greeting)


async def test_a_task_with_every_method() -> None:
    Order.closed = []
    with pytest.raises(UserError, match=r"environment.settings: Order cannot be made with them: .*'tip'"):
        source_of_object(Order, section(settings={"greeting": "Hello.", "tip": 3}))
    settings = {"greeting": "Hello.", "num": 3}
    source = source_of_object(Order, section(settings=settings))
    assert source.rows is not None
    rows = list(source.rows(section(settings=settings)))
    assert [row["question"] for row in rows] == ["Order 0", "Order 1", "Order 2"]
    async with opened(Order, settings=settings) as environment:
        task = problem(dict(rows[1]))
        opening = environment.opening(task)
        assert opening.messages == (
            {"role": "system", "content": "You take orders."},
            {"role": "user", "content": "Order 1"},
        )
        assert [tool.name for tool in opening.tools] == ["order"]
        assert environment.solution(task) == ("I order ['soup']",)
        episode = await environment.begin(task)
        assert episode.observation == " Hello."
        assert (await call(episode, "order", dish="soup")).status is ToolStatus.NO_OUTPUT
        assert not episode.is_over
        await call(episode, "order", dish="the bill")
        assert episode.is_over
        assert await episode.reply("soup?") == "Did you say 'soup?'?"
        assert await episode.reply("no") is None
        judgement = await episode.score(trace("a", "b"))
        assert judgement.score == 1.5
        assert judgement.details == {"dishes": 1.0, "words": 0.5}
        await episode.close()
        assert Order.closed == ["Hello."]
        assert task.row["dishes"] == ["soup"], "an episode has a row of its own"
    assert Order.closed == ["Hello."] * 2, "the object that wrote the prompts is closed as well"


class Smallest(Task):
    def get_reward(self, trace: Any) -> bool:
        return "4" in trace.turn_texts[-1]


async def test_the_smallest_task() -> None:
    source = source_of_object(Smallest, section())
    assert source.rows is None
    async with opened(Smallest) as environment:
        episode = await environment.begin(problem({"question": "2 + 2?"}))
        assert (await episode.score(trace("It is 4."))).verdict is Verdict.RIGHT
        assert (await episode.score(trace("It is 5."))).verdict is Verdict.WRONG
        assert environment.solution(problem({"question": "2 + 2?"})) is None
        with pytest.raises(UserError, match="the first message is empty: the row needs one of the columns prompt"):
            await environment.begin(problem({"text": "2 + 2?"}))


class Rewarded(Task):
    value: Any = None

    def get_reward(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "returned None as its reward; return a number"),
        ("1", "returned a str as its reward"),
        (float("nan"), "returned nan as its reward; a reward must be a finite number"),
        (10**400, "returned inf as its reward"),
        ([1.0], "returned a list as its reward"),
        ({}, "returned a dict without parts"),
        ({"a": 1.0, "b": "x"}, "returned a str as 'b' of its reward"),
        (Judgement(score=float("inf")), "returned inf as its reward"),
    ],
)
async def test_a_reward_that_is_none(value: Any, message: str) -> None:
    Rewarded.value = value
    async with opened(Rewarded) as environment:
        episode = await environment.begin(problem({"prompt": "x"}))
        with pytest.raises(EnvironmentCodeError, match=message) as raised:
            await episode.score(trace())
    assert "test_environments_class.py, line" in str(raised.value)


async def test_rewards_in_every_form() -> None:
    import numpy as np

    async with opened(Rewarded) as environment:
        episode = await environment.begin(problem({"prompt": "x"}))
        for value, expected in [
            (1, Judgement(score=1.0, format_penalty=0.0)),
            (np.float32(0.5), Judgement(score=0.5, format_penalty=0.0)),
            (np.bool_(True), Judgement(Verdict.RIGHT, format_penalty=0.0)),
            ({"a": True, "b": np.int64(2)}, Judgement(score=3.0, details={"a": 1.0, "b": 2.0}, format_penalty=0.0)),
            (Judgement(score=0.5, format_penalty=0.25), Judgement(score=0.5, format_penalty=0.25)),
        ]:
            episode.task.value = value  # type: ignore[attr-defined]
            assert await episode.score(trace()) == expected


class Failing(Task):
    num_closed = 0
    started = threading.Event()
    go_on = threading.Event()

    def reset(self, fails: str = "") -> None:
        self.fails = fails
        if fails == "reset":
            raise KeyError("reset")

    def hang(self) -> str:
        """Hangs."""
        self.started.set()
        self.go_on.wait()
        return "late"

    def other(self) -> str:
        """Another."""
        return "done"

    def raises(self) -> str:
        """Raises."""
        raise RuntimeError("broken\n" + "x" * 10_000)

    def get_reward(self) -> float:
        if self.fails == "hang":
            self.go_on.wait()
        return 1.0

    def close(self) -> None:
        type(self).num_closed += 1


async def test_a_hung_tool_names_its_line_and_stops_the_episode() -> None:
    Failing.go_on.clear()
    async with opened(Failing, deadline_s=2.0) as environment:
        episode = await environment.begin(problem({"prompt": "x"}))
        with pytest.raises(
            EnvironmentCodeError, match=r"tool hang: .*test_environments_class.py, line \d+: no answer within 2 s"
        ):
            await call(episode, "hang")
        with pytest.raises(EnvironmentCodeError, match="tool other was not called after a failure of tool hang"):
            await call(episode, "other")
        Failing.go_on.set()
        await episode.close()


async def test_a_hung_reward() -> None:
    Failing.go_on.clear()
    async with opened(Failing, deadline_s=2.0) as environment:
        episode = await environment.begin(problem({"prompt": "x", "fails": "hang"}))
        with pytest.raises(EnvironmentCodeError, match=r"Failing.get_reward: .*, line \d+: no answer within 2 s"):
            await episode.score(trace())
        Failing.go_on.set()
        await episode.close()


async def test_an_exception_in_a_tool_is_short_and_names_its_line() -> None:
    async with opened(Failing) as environment:
        episode = await environment.begin(problem({"prompt": "x"}))
        with pytest.raises(EnvironmentCodeError, match=r"py, line \d+: RuntimeError: broken\nx+… \(10007 characters"):
            await call(episode, "raises")
        await episode.close()
    async with opened(Failing, on_error="stop") as environment:
        episode = await environment.begin(problem({"prompt": "x"}))
        with pytest.raises(UserError, match="RuntimeError: broken"):
            await call(episode, "raises")
        await episode.close()


async def test_what_fails_is_closed() -> None:
    Failing.num_closed = 0
    async with opened(Failing) as environment:
        with pytest.raises(EnvironmentCodeError, match=r"Failing.reset: .*KeyError: 'reset'"):
            await environment.begin(problem({"prompt": "x", "fails": "reset"}))
        assert Failing.num_closed == 1
    assert Failing.num_closed == 2


async def test_a_cancelled_call_closes_at_once() -> None:
    Failing.go_on.clear()
    Failing.started.clear()
    async with opened(Failing) as environment:
        episode = await environment.begin(problem({"prompt": "x"}))
        calling = asyncio.create_task(call(episode, "hang"))
        await asyncio.to_thread(Failing.started.wait)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        Failing.go_on.set()
        await episode.close()


class Notes(Task):
    """A library that may be used from one thread alone, and calls that depend on their order."""

    def reset(self) -> None:
        self.base = sqlite3.connect(":memory:")
        self.base.execute("create table notes (text)")

    def note(self, text: str) -> list[str]:
        """Writes a note."""
        self.base.execute("insert into notes values (?)", (text,))
        return [row[0] for row in self.base.execute("select text from notes")]

    def get_reward(self) -> float:
        return float(self.base.execute("select count(*) from notes").fetchone()[0])


async def test_the_calls_of_an_episode_run_in_one_thread_and_in_order() -> None:
    async with opened(Notes) as environment:
        episode = await environment.begin(problem({"prompt": "x"}))
        results = await asyncio.gather(*(call(episode, "note", text=text) for text in "abc"))
        assert [result.text for result in results] == ['["a"]', '["a","b"]', '["a","b","c"]']
        assert (await episode.score(trace())).score == 3.0
        await episode.close()


async def test_threads_end_with_their_episodes() -> None:
    def num_threads() -> int:
        return sum(thread.name == "environment" for thread in threading.enumerate())

    async with opened(Notes) as environment:
        before = num_threads()
        episodes = [await environment.begin(problem({"prompt": "x"})) for _ in range(5)]
        assert num_threads() == before + 5
        threads = [thread for thread in threading.enumerate() if thread.name == "environment"]
        for episode in episodes:
            await episode.close()
        for thread in threads[-5:]:
            await asyncio.to_thread(thread.join, 10)
        assert num_threads() == before


async def test_a_reward_function_alone_is_an_environment() -> None:
    async def reward(row: Any, trace: Any) -> float:
        return float(row["answer"] in trace.turn_texts[-1])

    async with opened(reward) as environment:
        row = {"question": "2 + 2?", "answer": "4"}
        assert environment.opening(problem(row)).messages[0]["content"] == "2 + 2?"
        episode = await environment.begin(problem(row))
        assert not episode.tools
        assert (await episode.score(trace("4"))).score == 1.0
        assert (await episode.score(trace("5"))).score == 0.0


class NoReset:
    def get_reward(self) -> float:
        return 0.0


class NoHint:
    def reset(self) -> None:
        pass

    def get_reward(self) -> float:
        return 0.0

    def act(self, where) -> str:  # type: ignore[no-untyped-def]
        """Acts."""
        return str(where)


class NoDocstring(Task):
    def get_reward(self) -> float:
        return 0.0

    def helper(self) -> None:
        pass


class MethodIsOver(Task):
    def get_reward(self) -> float:
        return 0.0

    def is_over(self) -> bool:  # type: ignore[override]
        return False


class BrokenEnd(Task):
    @property
    def is_over(self) -> bool:  # type: ignore[override]
        raise KeyError("over")

    def get_reward(self) -> float:
        return 1.0


async def test_an_is_over_that_fails_ends_the_episode_without_a_reward() -> None:
    async with opened(BrokenEnd) as environment:
        episode = await environment.begin(problem({"prompt": "x"}))
        assert episode.is_over
        with pytest.raises(EnvironmentCodeError, match=r"BrokenEnd.is_over: .*class.py, line \d+: KeyError: 'over'"):
            await episode.score(trace())
        await episode.close()
    async with opened(BrokenEnd, on_error="stop") as environment:
        episode = await environment.begin(problem({"prompt": "x"}))
        with pytest.raises(UserError, match="KeyError"):
            _ = episode.is_over
        await episode.close()


class RowsOfObject(Smallest):
    def rows(self) -> list[Any]:  # type: ignore[override]
        return []


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (NoReset, r"environment.source: .*class.py, line \d+: class NoReset has no reset"),
        (WithoutReward, "class WithoutReward has no get_reward.*environment.reward"),
        (NoHint, r"test_environments_class.py, line \d+: tool act: parameter where has no type hint"),
        (NoDocstring, r"line \d+: tool helper has no docstring.*begin with an underscore"),
        (MethodIsOver, "is_over is a value, not a method"),
        (RowsOfObject, "rows.. must be a staticmethod"),
        (3, "own.py:Own is a int; it must be a class derived from"),
        (lambda only: only, "is a function; it must be"),
    ],
)
def test_what_cannot_be_an_environment(found: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        source_of_object(found, section())


def test_a_source_is_a_source() -> None:
    source = EnvironmentSource(open=lambda *_: None)  # type: ignore[arg-type,return-value]
    assert source_of_object(source, section()) is source


class Hangs(Task):
    """What it does before an episode never ends."""

    released = threading.Event()

    def prompt(self, row: Any) -> str:
        if row.get("hangs"):
            self.released.wait()
        return "Go."

    def get_reward(self) -> float:
        return 1.0

    def solution(self, _row: Any) -> Iterator[str]:
        self.released.wait()
        yield "done"


async def test_a_prompt_or_a_solution_that_hangs_is_a_fault_with_its_line() -> None:
    async with opened(Hangs, deadline_s=1.0) as environment:
        assert environment.opening(problem({})).messages[-1]["content"] == "Go."
        with pytest.raises(EnvironmentCodeError, match=r"Hangs.prompt: .*line \d+: no answer within 1 s"):
            environment.opening(problem({"hangs": True}))
        with pytest.raises(EnvironmentCodeError, match=r"Hangs.solution: .*line \d+: no answer within 1 s"):
            environment.solution(problem({}))
    Hangs.released.set()


class Hears(Task):
    def prompt(self, _row: Any) -> str:
        return "Speak."

    def reply(self, said: str) -> str:
        return f"[{said}]"

    def get_reward(self) -> float:
        return 1.0


async def test_reply_hears_what_was_said_and_not_what_was_thought() -> None:
    async with opened(Hears) as environment:
        episode = await environment.begin(problem({}))
        assert await episode.reply("It is far.</reason>\nnorth\n") == "[north]"
        assert await episode.reply("north") == "[north]"
        await episode.close()
