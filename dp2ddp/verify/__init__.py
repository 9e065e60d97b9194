"""Run an original and its conversion, record both without changing them, compare what they did.

`cli` is `dp2ddp verify`; `plugin` its pytest fixture. `command.verifying` has a fork server (`start`) start both
scripts under `run.record`, each in a `scratch` directory, where `emulate` shows them another machine and a `recorder`
writes down what they do; `side_by_side` compares the recordings as they come (`compare`), `verification` judges, and
`causes` says what went wrong. `report` tells it in a terminal, `page` as a page. What is imported before the fork
server starts needs no torch; the codemod doesn't import this package.
"""

COUNT = 256  # training samples of a data set, where no number is given
