"""The command line ``anvil``."""

from .app import main

__all__ = ["main"]
