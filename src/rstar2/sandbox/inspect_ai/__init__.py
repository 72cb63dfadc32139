"""A sandbox provider for inspect_ai: `sandbox="rstar2"`. inspect_ai finds it by its entry point.

Promise: Python command lines run as they would on a machine without a shell; every other command fails as "command not
found" does, and is never run outside the sandbox. Importing this folder needs inspect_ai; no other part needs it.
"""

from rstar2.sandbox.inspect_ai.provider import RStar2SandboxEnvironment

__all__ = ["RStar2SandboxEnvironment"]
