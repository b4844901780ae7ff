"""`install.py [--dry-run] [--include-main] [--agent ID]`, as agent-interrupt had it.

`clawstop install` sets up every agent, `main` too, so the last two change nothing.
"""

import argparse
import runpy
import sys
from pathlib import Path

parser = argparse.ArgumentParser(description="Set up all agents; see `clawstop install --help`.")
parser.add_argument("--dry-run", action="store_true")
parser.add_argument("--include-main", action="store_true", help="it always is")
parser.add_argument("--agent", help="all agents are set up")
asked = parser.parse_args()
if asked.agent:
    print(f"all agents are set up, not only {asked.agent}", flush=True)
sys.argv[1:] = ["install", *(["--dry-run"] if asked.dry_run else [])]
runpy.run_path(str(Path(__file__).resolve().parent.parent), run_name="__main__")
