"""The viewer: run directories as a local web page, or as one HTML file.

Promise: reads run directories and never writes them; opens a run of any size by parts; what a model wrote is shown as
text and never interpreted; nothing is fetched from elsewhere.
May import: records, sandbox, algo.
"""

from rstar2.web.report import render_report

__all__ = ["render_report"]
