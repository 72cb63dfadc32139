"""`rstar2 eval`: a model on benchmarks, by the report's protocol; resumable, and graded again at will."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.agent_flags import AgentFlags, asked_recipe, use_service
from rstar2.cli.eval_setup import (
    JudgeFlags,
    keep_tokenizer,
    load_benchmarks,
    make_judges,
    most_response_tokens,
    open_bench,
    with_services,
)
from rstar2.cli.flag_groups import in_panel, with_flags
from rstar2.cli.output import ExitCode, note, print_json
from rstar2.errors import UserError
from rstar2.extensions import BENCHMARKS

if TYPE_CHECKING:
    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.config import Recipe
    from rstar2.evals import BenchmarkResult, EvalPlan, EvalSettings
    from rstar2.records import RunDirectory, RunView
    from rstar2.rollout.trees import TreeSettings

VERB = "eval"
_ALONGSIDE_A_RUN = ("as_json", "markdown", "sandbox", "num_threads")
"""What may be given together with --resume or --regrade; all else is as the run has it."""
_measure, _run = map(in_panel, ("What is measured", "Run and results"))


@dataclass(frozen=True, slots=True)
class EvalReport:
    results: "dict[str, BenchmarkResult]"
    plan: "EvalPlan"
    deviations: tuple[str, ...]
    model: str


@with_flags
def eval_command(
    context: typer.Context,
    flags: AgentFlags,
    judge: JudgeFlags,
    bench: Annotated[
        str,
        _measure(
            metavar="NAME[,NAME]",
            help=f"{', '.join(BENCHMARKS)}, procedural:TASK[+TASK], a set of the recipe's \\[data], or a file. By "
            "default the recipe's.",
        ),
    ] = "",
    samples: Annotated[
        int | None, _measure(metavar="N", min=1, help="Rollouts of each problem; by default 16.")
    ] = None,
    num_leaves: Annotated[
        int | None,
        _measure(
            "--tree",
            metavar="LEAVES",
            min=1,
            help="In place of --samples: this many rollouts of each problem, as a tree. A quarter begin at the "
            "prompt, the others fork after a tool result. maj@k then scores the answer that the search chooses.",
        ),
    ] = None,
    num_tokens: Annotated[
        int | None,
        _measure(
            "--tree-tokens",
            metavar="TOKENS",
            min=1,
            help="With --tree: begin no further rollout of a problem that is expected to exceed this many generated "
            "tokens.",
        ),
    ] = None,
    num_problems: Annotated[
        int | None,
        _measure("--problems", metavar="N", min=1, help="At most N problems of a benchmark, drawn by the seed."),
    ] = None,
    has_tools: Annotated[bool, _measure("--tools/--no-tools", help="Without tools: plain chain of thought.")] = True,
    entropies: Annotated[
        bool, _measure("--entropies", help="Keep each token's entropy, for `rstar2 analyze`.")
    ] = False,
    is_answer_anywhere: Annotated[
        bool,
        _measure("--answer-anywhere", help="Accept a box outside of an answer block: for models that write none."),
    ] = False,
    data_dir: Annotated[
        Path | None, _measure(metavar="FOLDER", help="Folder of data files; RSTAR2_DATA if left out.")
    ] = None,
    run_dir: Annotated[
        Path | None, _run("--run", metavar="FOLDER", help="Folder of the run; by default runs/eval-TIME.")
    ] = None,
    resume: Annotated[Path | None, _run(metavar="RUN", help="Resume an evaluation that was interrupted.")] = None,
    regrade: Annotated[
        Path | None, _run(metavar="RUN", help="Score the traces of a run again, without generating.")
    ] = None,
    as_json: Annotated[bool, _run("--json", help="Print the results as JSON.")] = False,
    markdown: Annotated[Path | None, _run(metavar="FILE", help="Write the results to a Markdown file too.")] = None,
) -> None:
    """Measure a model on benchmarks, by the report's protocol (temperature 0.6, 30K tokens, 30 turns, 16 samples)
    unless options or a recipe say otherwise. Exit code 1 if samples are missing from the scores."""
    import asyncio

    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.evals import EvalPlan
    from rstar2.grading import AnswerPlace
    from rstar2.records import RunDirectory, make_run_folder

    stored = _stored_run(context, resume, regrade)
    if stored is not None:
        plan, asked, judge = _remembered(stored, flags)
        path = stored.path
        report = asyncio.run(
            _regrade(stored, plan, asked, judge)
            if regrade is not None
            else _evaluate(plan, asked, judge, lambda: RunDirectory.resume(path, verb=VERB))
        )
    else:
        if samples is not None and num_leaves is not None:
            raise UserError("--tree and --samples exclude each other: both say how many rollouts a problem has")
        recipe = asked_recipe(flags, samples=samples or num_leaves)
        benchmarks = _split(bench) if bench else recipe.eval.benchmarks
        if not benchmarks:
            raise UserError("--bench is needed: which benchmarks? (`rstar2 data list` shows them)")
        plan = EvalPlan(
            benchmarks=tuple(dict.fromkeys(benchmarks)),
            settings=_settings(recipe, _tree(recipe, num_leaves, num_tokens), has_tools=has_tools, entropies=entropies),
            seed=recipe.seed,
            num_generated=num_problems or 100,
            max_problems=num_problems,
            answer_place=AnswerPlace.ANYWHERE if is_answer_anywhere else AnswerPlace.ANSWER_BLOCK,
            data_dir=str(data_dir.absolute()) if data_dir else None,
        )
        asked = AgentRequest(recipe, flags.num_threads)
        if flags.tools and not has_tools:
            raise UserError("--tool and --no-tools exclude each other: give one of them")
        _check(plan, asked, judge)

        def create() -> "RunDirectory":
            folder = run_dir or make_run_folder(VERB)
            run = RunDirectory.create(folder, verb=VERB, recipe_toml=_kept(plan, asked, judge), seed=plan.seed)
            note(f"every trace goes to {folder}; if interrupted: rstar2 eval --resume {folder}")
            return run

        report = asyncio.run(_evaluate(plan, asked, judge, create))
    _report(report, as_json=as_json, markdown_file=markdown)
    if not all(result.is_complete for result in report.results.values()):
        raise typer.Exit(ExitCode.NO)


def _tree(recipe: "Recipe", num_leaves: int | None, num_tokens: int | None) -> "TreeSettings | None":
    from rstar2.rollout.trees import TreeSettings

    if num_leaves is not None:
        return TreeSettings.for_search(num_leaves, num_tokens)
    tree = TreeSettings.of_evaluation(recipe.eval.tree)
    if num_tokens is None:
        return tree
    if tree is None:
        raise UserError("--tree-tokens needs --tree, or a recipe with [eval.tree]")
    return replace(tree, max_generated_tokens=num_tokens)


def _settings(recipe: "Recipe", tree: "TreeSettings | None", *, has_tools: bool, entropies: bool) -> "EvalSettings":
    from rstar2.evals import EvalSettings

    return EvalSettings(
        num_samples=recipe.eval.num_samples,
        temperature=recipe.eval.temperature,
        max_response_tokens=recipe.eval.max_response_tokens,
        max_turns=recipe.eval.max_turns,
        has_tools=has_tools,
        entropies=entropies,
        max_tool_output_tokens=recipe.agent.max_tool_output_tokens,
        max_fault_retries=recipe.rollout.max_fault_retries,
        tree=tree,
    )


def _split(bench: str) -> list[str]:
    """Commas separate benchmarks, so the tasks of one procedural set are joined by `+`."""
    names = [name.strip() for name in bench.split(",") if name.strip()]
    return [name.replace("+", ",") if name.startswith("procedural:") else name for name in names]


def _check(plan: "EvalPlan", asked: "AgentRequest", judge: JudgeFlags) -> None:
    """Checks that need no run folder."""
    judges = make_judges(plan, judge, executor=None)
    for benchmark in load_benchmarks(plan, asked.recipe):
        judges.check(benchmark)


def _stored_run(context: typer.Context, resume: Path | None, regrade: Path | None) -> "RunView | None":
    """The run that --resume or --regrade names, if any; other options beside them would not be listened to."""
    from rstar2.records import RunView

    if resume is not None and regrade is not None:
        raise UserError("--resume and --regrade exclude each other: give one of them")
    path = resume or regrade
    if path is None:
        return None
    flag = "resume" if resume else "regrade"
    given = [
        option.opts[0]
        for option in context.command.params
        if (source := context.get_parameter_source(option.name or "")) is not None
        and source.name == "COMMANDLINE"
        and option.name not in (*_ALONGSIDE_A_RUN, flag)
    ]
    if given:
        raise UserError(f"--{flag} takes everything from the run: leave out {given[0]}")
    view = RunView(path)
    if view.info.verb != VERB:
        raise UserError(f"{path} holds a run of `rstar2 {view.info.verb}`, not an evaluation")
    return view


def _kept(plan: "EvalPlan", asked: "AgentRequest", judge: JudgeFlags) -> str:
    """A recipe and the evaluation's own tables, so that the run can be resumed from anywhere."""
    from rstar2.config import to_toml

    kept_judge = asdict(judge)
    if judge.judge_baseline is not None:
        kept_judge["judge_baseline"] = str(Path(judge.judge_baseline).absolute())
    return to_toml(_absolute(asked.recipe), only_given=True) + "\n" + plan.to_toml({"judge": kept_judge})


def _absolute(recipe: "Recipe") -> "Recipe":
    """The same recipe for any working directory, of what it was given and nothing else."""
    from rstar2.config import EnvironmentSection
    from rstar2.environments.user_code import absolute_spec

    def engine() -> dict[str, str]:
        paths = {"script": recipe.engine.script, "tokenizer": recipe.engine.tokenizer}
        return {key: str(Path(path).absolute()) for key, path in paths.items() if path is not None}

    def environment(section: EnvironmentSection) -> EnvironmentSection:
        absolute: dict[str, object] = {"source": absolute_spec(section.source)}
        if section.tools is not None:
            absolute["tools"] = tuple(map(absolute_spec, section.tools))
        if section.reward is not None:
            absolute["reward"] = absolute_spec(section.reward)
        return section.model_copy(
            update={key: value for key, value in absolute.items() if key in section.model_fields_set}
        )

    changes: dict[str, object] = {}
    if engine():
        changes["engine"] = recipe.engine.model_copy(update=engine())
    if "environment" in recipe.model_fields_set:
        changes["environment"] = environment(recipe.environment)
    if recipe.environments:
        changes["environments"] = {name: environment(section) for name, section in recipe.environments.items()}
    return recipe.model_copy(update=changes) if changes else recipe


def _remembered(view: "RunView", flags: AgentFlags) -> "tuple[EvalPlan, AgentRequest, JudgeFlags]":
    from rstar2.cli.agent_setup import AgentRequest
    from rstar2.config.mistakes import validated
    from rstar2.evals import read_plan

    plan, sections = read_plan(view.recipe_toml)
    judge = JudgeFlags(**sections.pop("judge", {}))
    use_service(sections, flags.sandbox)
    recipe, mistakes = validated(sections)
    if recipe is None:
        raise UserError(f"this run's recipe.toml is not one of an evaluation: {mistakes[0].sentence}")
    return plan, AgentRequest(recipe, flags.num_threads), judge


async def _evaluate(
    plan: "EvalPlan", asked: "AgentRequest", judge: JudgeFlags, open_run: "Callable[[], RunDirectory]"
) -> EvalReport:
    """The run is opened when all that it needs is there: a model that cannot be loaded leaves no folder behind."""
    from collections import Counter

    from rstar2.cli.eval_display import sample_bars
    from rstar2.evals import run_evaluation
    from rstar2.evals.session import stored_history
    from rstar2.records import RunView

    benchmarks = load_benchmarks(plan, asked.recipe)
    async with open_bench(plan, benchmarks, asked, judge) as (bench, model):
        most = most_response_tokens(model)
        if most is not None and most < plan.settings.max_response_tokens:
            note(f"{bench.model} has room for {most:,} tokens: responses end there")
            plan = plan.within(most)
        with open_run() as run:
            keep_tokenizer(model, run.layout.tokenizer)
            earlier = stored_history(RunView(run.path)).samples
            done = Counter(key.benchmark for key, sample in earlier.items() if not sample.is_fault)
            with sample_bars(benchmarks, plan, done) as show:
                results = await run_evaluation(plan, benchmarks, bench, run, show)
    return EvalReport(results, plan, plan.deviations(benchmarks), bench.model)


async def _regrade(view: "RunView", plan: "EvalPlan", asked: "AgentRequest", judge: JudgeFlags) -> EvalReport:
    from rstar2.cli.agent_setup import open_executor
    from rstar2.cli.eval_display import grading_bar
    from rstar2.data import Grading
    from rstar2.evals import grade_again, results_of
    from rstar2.evals.session import num_stored

    benchmarks = load_benchmarks(plan, asked.recipe)
    if any(benchmark.grading is Grading.ENVIRONMENT for benchmark in benchmarks):
        raise UserError("--regrade: an environment scores its own episodes, which are over; evaluate again")
    async with open_executor(with_services(asked.recipe, benchmarks)) as executor:
        judges = make_judges(plan, judge, executor)
        for benchmark in benchmarks:
            judges.check(benchmark)
        with grading_bar(num_stored(view)) as advance:
            graded = await grade_again(view, benchmarks, judges, only_undecided=False, on_graded=advance)
        results = await results_of(graded.history, benchmarks, plan, judges)
    note(f"graded {graded.num_graded:,} traces again: {graded.num_changed:,} scores are others; the run stays as it is")
    script = asked.recipe.engine.script
    model = asked.recipe.model.name if script is None else Path(script).name
    return EvalReport(results, plan, plan.deviations(benchmarks), model)


def _report(report: EvalReport, *, as_json: bool, markdown_file: Path | None) -> None:
    from rstar2.cli.eval_display import print_results
    from rstar2.evals.session import result_as_json
    from rstar2.evals.tables import markdown, published_scores

    if markdown_file is not None:
        text = markdown(report.results, report.model, report.deviations)
        try:
            markdown_file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"--markdown: {markdown_file} cannot be written: {error}") from None
    if as_json:
        print_json(
            {
                "model": report.model,
                "protocol": asdict(report.plan.settings),
                "deviations": report.deviations,
                "results": {name: result_as_json(result) for name, result in report.results.items()},
                "published": published_scores(report.results),
            }
        )
    else:
        print_results(report.results, report.model, report.deviations)
