"""`clawstop run`, the short way: `python3 -I -S launch.py ...`; see wrapping.py."""

import os
import sys

if sys.pycache_prefix is None and os.name == "posix":  # as __main__.py has it, and why
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    sys.pycache_prefix = f"{data}/clawstop/pycache"
sys.path.insert(0, __file__.replace("\\", "/").rpartition("/")[0])
import wrapping  # type: ignore[import-not-found]

sys.path.pop(0)
if __name__ == "__main__":
    sys.exit(wrapping.main(sys.argv[1:]))
