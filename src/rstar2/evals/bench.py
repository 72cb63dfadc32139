"""Makes the roller and the judge for each kind of benchmark."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rstar2.agent import ChatFormat
from rstar2.data import Grading
from rstar2.environments import Environment
from rstar2.errors import UserError
from rstar2.evals.arena import Chat, arena_judge
from rstar2.evals.bfcl import asked_messages, call_judge
from rstar2.evals.bfcl.multi_turn import MultiTurnPlay, first_messages, multi_turn_judge
from rstar2.evals.ifeval import instruction_judge
from rstar2.evals.plain_roller import PlainRoller, plain_question
from rstar2.evals.plan import Benchmark
from rstar2.grading import AnswerPlace, Grader
from rstar2.records import Trace
from rstar2.records.trace import FULL_REWARD
from rstar2.rollout.driver import Driver
from rstar2.rollout.judge import Judge, answer_judge
from rstar2.rollout.request import Rolls
from rstar2.rollout.roller import Roller


@dataclass(frozen=True, slots=True)
class Judges:
    """The means to judge responses. `arena` and `baseline` come from the user; only Arena-Hard needs them."""

    grader: Grader
    answer_place: AnswerPlace = AnswerPlace.ANSWER_BLOCK
    arena: Chat | None = None
    baseline: Mapping[str, str] = field(default_factory=dict)

    def of(self, grading: Grading) -> Judge | None:
        """The judge for this kind of grading; None if the environment judges the episode itself."""
        match grading:
            case Grading.ENVIRONMENT:
                return None
            case Grading.ANSWER:
                return answer_judge(self.grader, self.answer_place)
            case Grading.INSTRUCTIONS:
                return instruction_judge()
            case Grading.CALLS:
                return call_judge()
            case Grading.MULTI_TURN_CALLS:
                return multi_turn_judge(self.grader.executor)
            case Grading.JUDGE:
                if self.arena is None:
                    raise UserError("arena_hard needs a judge: give --judge-url, --judge-model and --judge-baseline")
                return arena_judge(self.arena, self.baseline)
            case Grading.NOTHING:
                raise UserError("a set of conversations cannot be evaluated on: it has nothing to grade")

    def check(self, benchmark: Benchmark) -> None:
        """Raises UserError, before anything is generated, if this benchmark cannot be judged."""
        self.of(benchmark.grading)
        if benchmark.grading is Grading.JUDGE:
            missing = [problem.id for problem in benchmark.problems if problem.id not in self.baseline]
            if missing:
                raise UserError(
                    f"--judge-baseline has no answer to {len(missing)} questions of {benchmark.name}, such as "
                    f"{missing[0]}: it needs one for each"
                )


@dataclass(frozen=True, slots=True)
class Bench:
    driver: Driver[Trace]
    chat: ChatFormat
    environments: Mapping[str, Environment]
    """The environments of a recipe's sets, by name."""
    math: Environment
    """The environment of problems with an answer."""
    judges: Judges
    model: str
    success_threshold: float = FULL_REWARD
    """The least reward of a success where an environment gives no verdict."""

    def roller(self, grading: Grading) -> Rolls:
        """The roller for this kind of grading. Problems with an answer, and those of a recipe's environments, go to the
        agent and its tools. All others are posed as the benchmark states them."""
        if grading is Grading.ENVIRONMENT:
            threshold = self.success_threshold
            return Roller(self.driver, self.chat, self.environments, self.model, success_threshold=threshold)
        if grading is Grading.ANSWER:
            return Roller(self.driver, self.chat, dict.fromkeys(self.environments, self.math), self.model)
        judge = self.judges.of(grading)
        assert judge is not None
        if grading is Grading.MULTI_TURN_CALLS:
            play = MultiTurnPlay(self.judges.grader.executor)
            return PlainRoller(self.driver, self.chat, first_messages, judge, self.model, play)
        ask = asked_messages if grading is Grading.CALLS else plain_question
        return PlainRoller(self.driver, self.chat, ask, judge, self.model)
