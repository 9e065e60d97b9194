"""Run an original and its conversion, record both without changing them, compare what they did.

`runs.start_original` and `runs.start_converted` start a script under `record`; `compare.compare` reads both recordings.
Everything here needs torch; the codemod doesn't import it.
"""
