"""`clawstop run`, the short way: `python3 -I -S launch.py ...`; see wrapping.py."""

import sys

sys.path.insert(0, __file__.replace("\\", "/").rpartition("/")[0])
import wrapping  # type: ignore[import-not-found]

sys.path.pop(0)
if __name__ == "__main__":
    sys.exit(wrapping.main(sys.argv[1:]))
