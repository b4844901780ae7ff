"""`interrupt.py [NAME] [--agent NAME] [--all] [--dry-run]`, as agent-interrupt had it."""

import argparse
import runpy
import sys
from pathlib import Path

parser = argparse.ArgumentParser(description="Stop an agent; see `clawstop stop --help`.")
parser.add_argument("target", nargs="?")
parser.add_argument("--agent")
parser.add_argument("--all", action="store_true", help="every agent except main")
parser.add_argument("--dry-run", action="store_true")
asked = parser.parse_args()
target = "all" if asked.all else asked.target or asked.agent
if not target:
    parser.error("whom? Give a name, or --all")
sys.argv[1:] = ["stop", target, *(["--dry-run"] if asked.dry_run else [])]
runpy.run_path(str(Path(__file__).resolve().parent.parent), run_name="__main__")
