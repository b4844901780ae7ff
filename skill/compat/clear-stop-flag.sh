#!/bin/sh
# clear-stop-flag.sh <sessionId>, as task-interrupt had it: `clawstop flag clear`, without set-up.
me=$0
while [ -L "$me" ]; do  # not `readlink -f`, which older macOS has not
  to=$(readlink -- "$me") || exit 2
  case $to in /*) me=$to ;; *) me=$(dirname -- "$me")/$to ;; esac
done
here=$(CDPATH='' cd -- "$(dirname -- "$me")" && pwd -P) || exit 2
exec python3 -B -I -S "$here/../clawstop/flagged.py" clear "$@"
