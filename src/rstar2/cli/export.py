"""`rstar2 export`: a checkpoint of a training run as a model that can be used."""

from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.output import say


def export_command(
    run: Annotated[Path, typer.Argument(help="The folder of a training run, also of one that is not over.")],
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A folder in RUN/checkpoints; by default the newest.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FOLDER", help="By default RUN/exported/NAME.", show_default=False),
    ] = None,
) -> None:
    """Write the model of a checkpoint as a Hugging Face folder, as a finished run has it in `final`."""
    from rstar2.models.storage import require_installed

    require_installed(("torch", "transformers"), "a checkpoint")
    from rstar2.train.checkpoints.export_checkpoint import export_checkpoint

    folder = export_checkpoint(run, checkpoint, output)
    say(f"model:  {folder}")
    say(f'try it: rstar2 solve --model {folder} "…"')
