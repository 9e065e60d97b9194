"""Run an original and its conversion, record both without changing them, compare what they did.

`command.verifying` is `dp2ddp verify`; `plugin` its pytest fixture. `runs` starts scripts under `record`, each in a
`scratch` directory, where `stand_in` and `cuda` show them another machine and a `recorder` writes down what they do;
`compare` reads both recordings, and `causes` says what went wrong. All but `plugin` need torch; the codemod doesn't
import it.
"""

COUNT = 256  # training samples of a data set, where no number is given
