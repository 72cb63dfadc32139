"""The viewer: run directories as a local web page, or as one HTML file.

Promise: the viewer reads run directories and never writes them; it reads a run of any size in parts; a model's text is
shown as text and never interpreted; nothing is fetched from other servers.
May import: records, sandbox, algo.
"""

from rstar2.web.report import render_report

__all__ = ["render_report"]
