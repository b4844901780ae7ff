"""`watch.py`, as agent-interrupt had it, for cron: `clawstop watch --once`."""

import runpy
import sys
from pathlib import Path

sys.argv[1:1] = ["watch", "--once"]
runpy.run_path(str(Path(__file__).resolve().parent.parent), run_name="__main__")
