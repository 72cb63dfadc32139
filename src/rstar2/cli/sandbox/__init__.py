"""`rstar2 sandbox`: run untrusted Python, serve it over HTTP, on one machine or many, measure it."""

import typer

from rstar2.cli.sandbox.bench import bench
from rstar2.cli.sandbox.gateway import gateway
from rstar2.cli.sandbox.mcp import mcp
from rstar2.cli.sandbox.run import run
from rstar2.cli.sandbox.serve import serve

app = typer.Typer(
    help="Run untrusted Python, isolated: one program, as a service, or as a benchmark.", no_args_is_help=True
)
app.command("run")(run)
app.command("serve")(serve)
app.command("gateway")(gateway)
app.command("mcp")(mcp)
app.command("bench")(bench)
