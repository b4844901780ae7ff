"""The stop button for AI agents.

A plugin author needs one name from here: the `hookimpl` marker (see `clawstop.hookspecs`).
"""

import pluggy

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("clawstop")
