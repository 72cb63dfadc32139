"""A small run directory to look at, made without a model: `python examples/scripted_run.py FOLDER`.

The policy is a script: it draws one of a few ways to go about a problem, clumsy ones often in the first steps and
rarely in the last. Everything else is real: the agent loop, the sandbox that runs the code, the grader, GRPO-RoC's
decision about each group, and what is counted from the traces. Nothing is learnt here; the curves rise because the
script says so.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from rstar2.agent import Agent, AgentLimits, ChatFormat, PythonTool
from rstar2.algo.group import RocSettings, decide_group
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.grading import Grader, count_answer_blocks
from rstar2.records import Group, Problem, RunDirectory, Selection, Trace, Verdict
from rstar2.sandbox import LocalExecutor

NUM_STEPS, PROBLEMS_PER_STEP, NUM_SAMPLES = 8, 3, 8
SECOND_STAGE = 5
LIMITS = AgentLimits(max_turns=4, max_response_tokens=320)
RECIPE = "# Made by examples/scripted_run.py: a scripted policy, a real sandbox, a real grader.\n"


def call(code: str) -> str:
    arguments = {"code": code, "input": ""}
    return f"<tool_call>\n{json.dumps({'name': PythonTool.schema.name, 'arguments': arguments})}\n</tool_call>"


def answer(number: int) -> str:
    return f"<answer>The result is \\boxed{{{number}}}.</answer>"


def ways(base: int, exponent: int, modulus: int) -> dict[str, list[str]]:
    """How a rollout may go about `base ** exponent % modulus`: its turns in order."""
    right = pow(base, exponent, modulus)
    program = f"print(pow({base}, {exponent}, {modulus}))"
    close = f"</reason>\n{answer(right)}"
    return {
        "clean": [
            f"The powers of {base} repeat modulo {modulus}, but finding the period by hand is error-prone. "
            f"Python's three-argument pow is exact, so I let it compute.</reason>\n{call(program)}",
            f"The program printed {right}, which lies between 0 and {modulus - 1} as it must.{close}",
        ],
        "fixes": [
            f"Modular exponentiation does it.</reason>\n{call(f'print(mod_pow({base}, {exponent}, {modulus}))')}",
            f"The name does not exist: Python calls it pow.</reason>\n{call(program)}",
            f"Now it works, and prints {right}.{close}",
        ],
        "checks": [
            f"Let me multiply step by step.</reason>\n"
            f"{call(f'r = 1{chr(10)}for _ in range({exponent}):{chr(10)}    r = r * {base} % {modulus}{chr(10)}r')}",
            f"But before answering, I double-check with another method.</reason>\n{call(program)}",
            f"Both agree on {right}.{close}",
        ],
        "guesses": [
            f"It looks as if the residue were {(right + 1) % modulus}.</reason>\n{answer((right + 1) % modulus)}"
        ],
        "slips": [
            f"I compute it.</reason>\n{call(f'print({base} ** {exponent // 2} % {modulus})')}",
            f"So that is the result.</reason>\n{answer(pow(base, exponent // 2, modulus))}",
        ],
        "malformed": [
            f"I compute it.</reason>\n<tool_call>\n{{'code': {program!r}\n</tool_call>",
            f"The call was malformed JSON. In my head, then: {right}.</reason>\n{answer(right)}\n{answer(right)}",
        ],
        "rambles": ["Let me think about the cycle of residues. " * 60],
    }


CLUMSY = {
    "clean": 0.15,
    "fixes": 0.15,
    "checks": 0.05,
    "guesses": 0.25,
    "slips": 0.15,
    "malformed": 0.1,
    "rambles": 0.15,
}
SKILLED = {
    "clean": 0.6,
    "fixes": 0.06,
    "checks": 0.2,
    "guesses": 0.04,
    "slips": 0.06,
    "malformed": 0.02,
    "rambles": 0.02,
}


def draw_way(skill: float, rng: np.random.Generator) -> str:
    weights = np.array([(1 - skill) * CLUMSY[name] + skill * SKILLED[name] for name in CLUMSY])
    return str(rng.choice(list(CLUMSY), p=weights / weights.sum()))


async def roll_out(
    problem: Problem,
    numbers: tuple[int, int, int],
    sessions: dict[str, str],
    tool: PythonTool,
    grader: Grader,
    step: int,
) -> list[Trace]:
    chat = ChatFormat.of(PlainTextTokenizer())

    def policy(prompt: ScriptedPrompt) -> str:
        return ways(*numbers)[sessions[prompt.session]][prompt.turn]

    agent = Agent(ScriptedEngine(policy, chat.tokenizer, chat.end_of_turn_id), chat, LIMITS)
    traces = await asyncio.gather(*(agent.rollout(problem, [tool], trace_id=session) for session in sessions))
    graded = []
    for index, trace in enumerate(traces):
        grade = await grader.grade(*trace.turn_texts, gold=problem.answer)
        is_right = grade.verdict is Verdict.RIGHT
        graded.append(
            replace(
                trace,
                group_id=f"{step}-{problem.id}",
                sample_index=index,
                step=step,
                model="scripted",
                answer=grade.answer,
                verdict=grade.verdict,
                reward=float(is_right),
            )
        )
    return graded


def measure(traces: Sequence[Trace], groups: Sequence[Group], seconds: float) -> dict[str, float]:
    right = [trace for trace in traces if trace.reward]
    wrong = [trace for trace in traces if not trace.reward]
    num_kept = sum(Selection.KEPT in group.selections for group in groups)
    return {
        "reward_mean": fmean(trace.reward or 0.0 for trace in traces),
        "accuracy": len(right) / len(traces),
        "tool_error_share_right": _error_share(right),
        "tool_error_share_wrong": _error_share(wrong),
        "calls_per_rollout": fmean(trace.num_tool_calls for trace in traces),
        "no_tool_share": fmean(trace.num_tool_calls == 0 for trace in traces),
        "truncated_share": fmean(trace.outcome == "truncated" for trace in traces),
        "response_tokens_mean": fmean(trace.num_response_tokens for trace in traces),
        "turns_mean": fmean(len(trace.turns) for trace in traces),
        "groups_kept": num_kept,
        "groups_dropped": len(groups) - num_kept,
        "step_s": seconds,
        "tokens_per_s": sum(trace.num_sampled_tokens for trace in traces) / seconds,
    }


def _error_share(traces: Sequence[Trace]) -> float:
    num_calls = sum(len(trace.results) for trace in traces)
    return sum(trace.num_tool_errors for trace in traces) / num_calls if num_calls else 0.0


async def main(folder: Path) -> None:
    rng = np.random.default_rng(7)
    argv = ["examples/scripted_run.py", "FOLDER"]
    async with LocalExecutor() as executor:
        tool, grader = PythonTool(executor), Grader(executor)
        with RunDirectory.create(folder, verb="scripted", recipe_toml=RECIPE, seed=7, argv=argv) as run:
            for step in range(1, NUM_STEPS + 1):
                started, traces, groups = time.monotonic(), list[Trace](), list[Group]()
                for number in range(PROBLEMS_PER_STEP):
                    base, exponent, modulus = (int(rng.integers(*r)) for r in ((3, 50), (100, 3000), (100, 1000)))
                    gold = str(pow(base, exponent, modulus))
                    name = f"modular-power-{step}-{number}"
                    problem = Problem(name, f"What is {base}^{exponent} modulo {modulus}?", gold)
                    skill = (step - 1) / (NUM_STEPS - 1)
                    sessions = {f"s{step}-p{number}-r{n}": draw_way(skill, rng) for n in range(NUM_SAMPLES)}
                    rollouts = await roll_out(problem, (base, exponent, modulus), sessions, tool, grader, step)
                    num_blocks = [count_answer_blocks(*trace.turn_texts) for trace in rollouts]
                    settings = RocSettings(group_size=NUM_SAMPLES // 2)
                    group_id = rollouts[0].group_id
                    groups.append(decide_group(rollouts, num_blocks, settings, rng, group_id=group_id, step=step))
                    traces += rollouts
                for trace in traces:
                    run.write_trace(trace)
                for group in groups:
                    run.write_group(group)
                stage = "stage-1" if step < SECOND_STAGE else "stage-2"
                run.write_metrics(step, stage, measure(traces, groups, time.monotonic() - started))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
