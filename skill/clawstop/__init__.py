"""The stop button for AI agents.

A plugin author needs one name from here: the `hookimpl` marker (see `clawstop.hookspecs`). A task
that cooperates needs `Interruptible` (see `clawstop.interruptible`).
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    import pluggy

    from .interruptible import Interrupted as Interrupted
    from .interruptible import Interruptible as Interruptible
    from .safestop import SafeStop as SafeStop

    hookimpl = pluggy.HookimplMarker("clawstop")
    InterruptibleAgent, SafeStopHandler = Interruptible, SafeStop

# On first use: what a broken environment still needs must import without pluggy, and fast.
_WHERE = {
    "Interruptible": ("interruptible", "Interruptible"),
    "InterruptibleAgent": ("interruptible", "Interruptible"),
    "Interrupted": ("interruptible", "Interrupted"),
    "SafeStop": ("safestop", "SafeStop"),
    "SafeStopHandler": ("safestop", "SafeStop"),
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        module, attribute = _WHERE[name]
        return getattr(import_module(f"{__name__}.{module}"), attribute)
    if name != "hookimpl":
        raise AttributeError(f"module 'clawstop' has no attribute {name!r}")
    import pluggy

    return pluggy.HookimplMarker("clawstop")
