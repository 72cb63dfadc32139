"""rstar2: teach a language model to reason, run Python, read the result and answer.

The folders are the architecture; each folder's docstring says what it promises. ARCHITECTURE.md draws the arrows.
"""

__version__ = "0.1.0"
