"""Whose fault it is, as a type.

`UserError`: the user asked for something that cannot be; the message names the field and the fix.
`InfrastructureError`: our machinery failed (a process died, a disk is full, a server is away); retrying may help,
and it is never blamed on the model. A broken invariant is neither: that is an assert.
"""


class UserError(ValueError):
    """A mistake in what the user gave us. The command line prints it as one sentence and exits with 2."""


class InfrastructureError(RuntimeError):
    """A part of rstar2, or the machine, failed. The command line prints it and exits with 3."""


class EnvironmentCodeError(InfrastructureError):
    """The code of an environment raised, took too long or returned something unusable. It may keep state, so it is not
    called again: the episode is left out."""
