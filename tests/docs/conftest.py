"""The tests of the pages find their helpers."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]
