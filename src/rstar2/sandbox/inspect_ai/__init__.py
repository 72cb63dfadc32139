"""A sandbox provider for inspect_ai: `sandbox="rstar2"`. inspect_ai finds it by its entry point.

Promise: Python command lines run as they would on a machine without a shell; everything else fails as a command that is
not there, and is never run outside the sandbox. Importing this folder needs inspect_ai; nothing else does.
"""

from rstar2.sandbox.inspect_ai.provider import RStar2SandboxEnvironment

__all__ = ["RStar2SandboxEnvironment"]
