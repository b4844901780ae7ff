"""`mark.py --agent ID (--pid N | --clear)`, as agent-interrupt had it: `clawstop mark`."""

import argparse
import runpy
import sys
from pathlib import Path

parser = argparse.ArgumentParser(description="Say whose a process is; see `clawstop mark --help`.")
parser.add_argument("--agent", required=True)
parser.add_argument("--pid", type=int)
parser.add_argument("--session", default="", help="its agent is enough")
parser.add_argument("--clear", action="store_true", help="not needed: who is dead is forgotten")
asked = parser.parse_args()
if asked.clear:
    sys.exit(0)
if asked.pid is None:
    parser.error("give --pid or --clear")
sys.argv[1:] = ["mark", "--agent", asked.agent, "--pid", str(asked.pid), "--yes"]
runpy.run_path(str(Path(__file__).resolve().parent.parent), run_name="__main__")
