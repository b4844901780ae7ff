"""The stop button for AI agents.

A plugin author needs one name from here: the `hookimpl` marker (see `clawstop.hookspecs`).
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    import pluggy

    hookimpl = pluggy.HookimplMarker("clawstop")


def __getattr__(name: str) -> Any:
    """`hookimpl` on first use: what a broken environment still needs must import without pluggy."""
    if name != "hookimpl":
        raise AttributeError(f"module 'clawstop' has no attribute {name!r}")
    import pluggy

    return pluggy.HookimplMarker("clawstop")
