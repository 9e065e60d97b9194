"""Run an original and its conversion, record both, compare what they did.

`cli` is `dp2ddp verify`. `command.verifying` has a fork server (`start`) start both scripts under `run.run_script`,
each in a `scratch` directory, where `emulate` shows them another machine and `run.step_hooks` write down what they do;
`paired_runs` has the recordings compared (`compare`), and `verification` judges, which `report` tells. What is imported
before the fork server starts needs no torch, and the codemod doesn't import this package.
"""

COUNT = 256  # training samples of a data set, where no number is given
