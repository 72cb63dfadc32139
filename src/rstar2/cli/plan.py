"""`rstar2 plan`: what a recipe needs before anyone pays for it: memory, what fits, days and device-hours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.output import ExitCode, print_json
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.config import Recipe
    from rstar2.plan import Assumptions, Device, MeanLength, RecipePlan
    from rstar2.rollout.simulator import EngineModel

REPORT_DEVICE = "mi300x"


def plan_command(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A file, or a name of `recipe list`.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field (train.lr=1e-6).")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="mi300x, mi325x, h100, h200, b200, a100, l40s, rtx4090 or cpu. By default the report's mi300x; cpu if "
            "the recipe asks for no GPU."
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(help="Engine speeds from this file of `rstar2 simulate --measure`, not from a data sheet."),
    ] = None,
    mean_response_tokens: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[STAGE=]N[:M]",
            help="Mean response, in all stages or in one, growing from N to M if given so. May be repeated.",
        ),
    ] = None,
    mean_eval_tokens: Annotated[float | None, typer.Option(min=1, help="Mean response in evaluations.")] = None,
    mean_prompt_tokens: Annotated[float | None, typer.Option(min=1, help="Mean prompt.")] = None,
    mean_conversation_tokens: Annotated[
        float | None, typer.Option(min=1, help="Mean conversation of the warm-up.")
    ] = None,
    problems: Annotated[
        list[str] | None,
        typer.Option(metavar="SET=N", help="Size of a set of \\[data] that is not on this machine. May be repeated."),
    ] = None,
    tool_seconds: Annotated[float, typer.Option(min=0, help="From a tool call to its result.")] = 0.3,
    tool_calls: Annotated[float, typer.Option(min=0, help="Tool calls of a rollout.")] = 2.75,
    mfu: Annotated[
        float | None,
        typer.Option(min=0.001, max=1, help="Share of the FLOPs that training reaches; 0.35 on a cluster or a CPU."),
    ] = None,
    network_gbit: Annotated[float, typer.Option(min=0.1, help="Gbit/s of each device to other machines.")] = 400.0,
    margin: Annotated[float, typer.Option(min=0, max=0.9, help="Share of the memory that is kept free.")] = 0.1,
    simulated_rollouts: Annotated[
        int, typer.Option(min=32, help="Rollouts of a step that are simulated; of larger steps a slice.")
    ] = 2048,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulated rollouts.")] = 0,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if something does not fit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Say what a recipe needs: memory, the largest micro-batch, KV capacity, step times, days. No GPU is needed."""
    from rstar2.models.storage import require_installed

    require_installed(("torch", "transformers"), "a plan builds the model, without its weights, and")
    from rstar2.config import load_recipe
    from rstar2.plan import Assumptions, find_device, plan_document

    loaded = load_recipe(recipe, overrides or [])
    assumptions = Assumptions(
        mfu=mfu,
        memory_margin=margin,
        network_bytes_per_s=network_gbit * 1e9 / 8,
        mean_response_tokens=_mean_lengths(mean_response_tokens or [], [stage.name for stage in loaded.stages]),
        mean_eval_tokens=mean_eval_tokens,
        mean_prompt_tokens=mean_prompt_tokens,
        mean_conversation_tokens=mean_conversation_tokens,
        tool_s=tool_seconds,
        calls_per_rollout=tool_calls,
        num_problems=_set_sizes(problems or []),
        max_simulated_rollouts=simulated_rollouts,
        seed=seed,
    )
    made = _make(loaded, find_device(hardware or _default_device(loaded)), assumptions, measured, as_json)
    if as_json:
        print_json(plan_document(made))
    else:
        from rstar2.cli.plan_display import print_plan

        print_plan(made)
    if check and not made.fits:
        raise typer.Exit(ExitCode.NO)


def _make(
    recipe: "Recipe", device: "Device", assumptions: "Assumptions", measured: Path | None, is_quiet: bool
) -> "RecipePlan":
    from rstar2.cli.console import Console
    from rstar2.plan import make_plan

    engine: EngineModel | None = None
    if measured is not None:
        from rstar2.rollout.simulator import read_measured

        engine = read_measured(measured)
    console = Console(stderr=True, quiet=is_quiet)
    with console.status("building the model on the meta device") as status:
        return make_plan(recipe, device, assumptions, measured_engine=engine, on_step=status.update)


def _default_device(recipe: "Recipe") -> str:
    """A recipe says whether it wants a GPU, not which."""
    has_gpus = recipe.cluster is not None and recipe.cluster.num_gpus > 0
    return REPORT_DEVICE if has_gpus or recipe.model.device == "cuda" else "cpu"


def _mean_lengths(texts: list[str], stages: list[str]) -> "dict[str, MeanLength]":
    from rstar2.plan import MeanLength

    lengths: dict[str, MeanLength] = {}
    for text in texts:
        stage, _, means = text.rpartition("=")
        first, _, last = means.partition(":")
        if stage and stage not in stages:
            raise UserError(
                f"--mean-response-tokens {text}: there is no stage {stage!r}; there are {', '.join(stages)}"
            )
        try:
            lengths[stage] = MeanLength(float(first), float(last or first))
        except ValueError:
            raise UserError(f"--mean-response-tokens {text}: must be N, N:M, STAGE=N or STAGE=N:M") from None
    return lengths


def _set_sizes(texts: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise UserError(f"--problems {text}: must be SET=N, as in rl=42000")
        sizes[name] = int(number)
    return sizes
