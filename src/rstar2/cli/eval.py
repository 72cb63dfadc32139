"""`rstar2 eval`: a model on benchmarks, by the report's protocol; resumable, and graded again at will."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rstar2.cli import agent_options as opt
from rstar2.cli.eval_setup import (
    JudgeOptions,
    keep_tokenizer,
    make_judges,
    most_response_tokens,
    open_bench,
    open_executor,
)
from rstar2.cli.output import ExitCode, note, print_json
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.evals import BenchmarkResult, EvalPlan
    from rstar2.records import RunDirectory, RunView

VERB = "eval"
_ALONGSIDE_A_RUN = ("as_json", "markdown", "sandbox")
"""What may be given together with --resume or --regrade; all else is as the run has it."""


@dataclass(frozen=True, slots=True)
class EvalReport:
    results: "dict[str, BenchmarkResult]"
    plan: "EvalPlan"
    deviations: tuple[str, ...]
    model: str


def eval_command(
    context: typer.Context,
    bench: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]",
            help="Benchmarks, by commas: aime24, aime25, amc23, gsm8k, hmmt_feb25, math500, gpqa_diamond, ifeval, "
            "bfcl, bfcl_multi_turn, arena_hard, procedural:TASK[+TASK], or a file of problems.",
        ),
    ] = "",
    samples: Annotated[int, typer.Option(min=1, help="Rollouts of each problem.")] = 16,
    has_tools: Annotated[bool, typer.Option("--tools/--no-tools", help="Without: plain chain of thought.")] = True,
    engine: opt.Engine = None,
    model: opt.Model = None,
    base_url: opt.BaseUrl = None,
    api_key_env: opt.ApiKeyEnv = None,
    tokenizer: opt.TokenizerFolder = None,
    script: opt.Script = None,
    template: opt.Template = "model",
    tools: opt.Tools = None,
    sandbox: opt.SandboxUrl = None,
    max_turns: opt.MaxTurns = 30,
    max_tokens: opt.MaxTokens = 30_720,
    temperature: opt.Temperature = 0.6,
    seed: Annotated[int, typer.Option(min=0, help="Names every random choice of the evaluation.")] = 0,
    num_problems: Annotated[
        int | None,
        typer.Option("--problems", min=1, help="At most so many problems of a benchmark, drawn by the seed."),
    ] = None,
    entropies: Annotated[
        bool,
        typer.Option("--entropies", help="Keep each token's entropy, for `rstar2 analyze`; the embedded engine can."),
    ] = False,
    is_answer_anywhere: Annotated[
        bool,
        typer.Option(
            "--answer-anywhere", help="Take the last box of the whole response: for models without answer blocks."
        ),
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder of data files; RSTAR2_DATA if left out.")
    ] = None,
    judge_url: Annotated[str | None, typer.Option(help="OpenAI-compatible server of Arena-Hard's judge.")] = None,
    judge_model: Annotated[str | None, typer.Option(help="The judge's model.")] = None,
    judge_key_env: Annotated[str | None, typer.Option(metavar="NAME", help="Environment variable of its key.")] = None,
    judge_baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSONL of the answers to compare with: id and answer.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="Where the run goes; runs/eval-TIME if left out.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with an evaluation that was interrupted.")
    ] = None,
    regrade: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Score the traces of a run again, without generating.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the results as Markdown to this file too.")
    ] = None,
) -> None:
    """Measure a model on benchmarks: by the report's protocol (temperature 0.6, 30K tokens, 30 turns, 16 samples)
    unless told otherwise. Exit code 1 if samples are missing from the scores."""
    import asyncio

    from rstar2.evals import EvalPlan, EvalSettings
    from rstar2.grading import AnswerPlace
    from rstar2.records import RunDirectory, make_run_folder

    stored = _stored_run(context, resume, regrade)
    if stored is not None and regrade is not None:
        report = asyncio.run(_regrade(stored, sandbox))
    elif stored is not None:
        plan, options, judge = _remembered(stored, sandbox)
        path = stored.path
        report = asyncio.run(_evaluate(plan, options, judge, lambda: RunDirectory.resume(path, verb=VERB)))
    else:
        if not bench:
            raise UserError("--bench is needed: which benchmarks? (`rstar2 data list` shows them)")
        plan = EvalPlan(
            benchmarks=tuple(dict.fromkeys(filter(None, (part.strip() for part in _split(bench))))),
            settings=EvalSettings(samples, temperature, max_tokens, max_turns, has_tools, entropies),
            seed=seed,
            num_generated=num_problems or 100,
            max_problems=num_problems,
            answer_place=AnswerPlace.ANYWHERE if is_answer_anywhere else AnswerPlace.ANSWER_BLOCK,
            data_dir=str(data_dir.absolute()) if data_dir else None,
        )
        options = opt.AgentOptions(
            engine=engine,
            model=model,
            base_url=base_url,
            api_key_env=api_key_env,
            tokenizer=tokenizer,
            script=script,
            template=template,
            tools=tuple(tools or ()),
            sandbox=sandbox,
            max_turns=max_turns,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
        )
        judge = JudgeOptions(
            judge_url, judge_model, judge_key_env, str(judge_baseline.absolute()) if judge_baseline else None
        )
        _check(plan, options, judge)
        recipe = plan.to_toml({"agent": _plain(options), "judge": asdict(judge)})

        def create() -> "RunDirectory":
            folder = run_dir or make_run_folder(VERB)
            run = RunDirectory.create(folder, verb=VERB, recipe_toml=recipe, seed=seed)
            note(f"every trace goes to {folder}; if interrupted: rstar2 eval --resume {folder}")
            return run

        report = asyncio.run(_evaluate(plan, options, judge, create))
    _report(report, as_json=as_json, markdown_file=markdown)
    if not all(result.is_complete for result in report.results.values()):
        raise typer.Exit(ExitCode.NO)


def _split(bench: str) -> list[str]:
    """Commas separate benchmarks, so the tasks of one procedural set are joined by `+`."""
    return [name.replace("+", ",") if name.startswith("procedural:") else name for name in bench.split(",")]


def _check(plan: "EvalPlan", options: opt.AgentOptions, judge: JudgeOptions) -> None:
    """What can be found out before a run folder is made."""
    from rstar2.cli.agent_setup import check_options

    if options.tools and not plan.settings.has_tools:
        raise UserError("--tool and --no-tools exclude each other: give one of them")
    check_options(options)
    judges = make_judges(plan, judge, executor=None)
    for benchmark in plan.load():
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
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None
        and source.name == "COMMANDLINE"
        and name not in (*_ALONGSIDE_A_RUN, flag)
    ]
    if given:
        raise UserError(f"--{flag} takes everything from the run: leave out --{given[0].replace('_', '-')}")
    view = RunView(path)
    if view.info.verb != VERB:
        raise UserError(f"{path} holds a run of `rstar2 {view.info.verb}`, not an evaluation")
    return view


def _remembered(view: "RunView", sandbox: str | None) -> "tuple[EvalPlan, opt.AgentOptions, JudgeOptions]":
    from rstar2.evals import read_plan

    plan, sections = read_plan(view.recipe_toml)
    kept: dict[str, Any] = dict.fromkeys(opt.AgentOptions.__dataclass_fields__) | sections.get("agent", {})
    kept |= {
        "tools": tuple(kept["tools"] or ()),
        "tokenizer": Path(kept["tokenizer"]) if kept["tokenizer"] else None,
        "script": Path(kept["script"]) if kept["script"] else None,
        "sandbox": sandbox or kept["sandbox"],
    }
    judge: dict[str, Any] = dict.fromkeys(JudgeOptions.__dataclass_fields__) | sections.get("judge", {})
    return plan, opt.AgentOptions(**kept), JudgeOptions(**judge)


def _plain(options: opt.AgentOptions) -> dict[str, Any]:
    """As it can be written down."""
    values = {
        name: str(value.absolute()) if isinstance(value, Path) else value for name, value in asdict(options).items()
    }
    return values | {"tools": list(options.tools)}


async def _evaluate(
    plan: "EvalPlan", options: opt.AgentOptions, judge: JudgeOptions, open_run: "Callable[[], RunDirectory]"
) -> EvalReport:
    """The run is opened when all that it needs is there: a model that cannot be loaded leaves no folder behind."""
    from collections import Counter

    from rstar2.cli.eval_display import sample_bars
    from rstar2.evals import run_evaluation
    from rstar2.evals.session import stored_history
    from rstar2.records import RunView

    benchmarks = plan.load()
    async with open_bench(plan, options, judge) as bench:
        most = most_response_tokens(options, bench)
        if most is not None and most < plan.settings.max_response_tokens:
            note(f"{bench.model} has room for {most:,} tokens: responses end there")
            plan = plan.within(most)
        with open_run() as run:
            keep_tokenizer(options, run.layout.tokenizer)
            earlier = stored_history(RunView(run.path)).samples
            done = Counter(key.benchmark for key, sample in earlier.items() if not sample.is_fault)
            with sample_bars(benchmarks, plan, done) as show:
                results = await run_evaluation(plan, benchmarks, bench, run, show)
    return EvalReport(results, plan, plan.deviations(benchmarks), bench.model)


async def _regrade(view: "RunView", sandbox: str | None) -> EvalReport:
    from rstar2.cli.eval_display import grading_bar
    from rstar2.evals import grade_again, results_of
    from rstar2.evals.session import num_stored

    plan, options, judge = _remembered(view, sandbox)
    benchmarks = plan.load()
    async with open_executor(options) as executor:
        judges = make_judges(plan, judge, executor)
        for benchmark in benchmarks:
            judges.check(benchmark)
        with grading_bar(num_stored(view)) as advance:
            graded = await grade_again(view, benchmarks, judges, only_undecided=False, on_graded=advance)
        results = await results_of(graded.history, benchmarks, plan, judges)
    note(f"graded {graded.num_graded:,} traces again: {graded.num_changed:,} scores are others; the run stays as it is")
    model = options.model or (options.script.name if options.script else "the model")
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
