"""`run.py --agent ID [--session KEY] -- COMMAND`, as agent-interrupt had it: `clawstop run`."""

import runpy
import sys
from pathlib import Path

sys.argv.insert(1, "run")
runpy.run_path(str(Path(__file__).resolve().parent.parent), run_name="__main__")
