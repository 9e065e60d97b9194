"""A notebook's cells as a script: what they show, where its lines stand, what a person is told."""

from __future__ import annotations

import ast
import contextlib
from pathlib import Path

import making
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp2ddp.errors import BadInput
from dp2ddp.notebook.notebook import Notebook, read

PLOT = "import matplotlib.pyplot as plt"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(*cells: str) -> Notebook:
    made = read(str(making.write(Path("train.ipynb"), *cells)))
    ast.parse(made.text)
    return made


def code(*cells: str) -> str:
    """The script without its first line."""
    return script(*cells).text.partition("\n\n")[2]


def test_cells_stand_one_below_the_other_and_text_is_comments() -> None:
    picture = f"![](data:image/png;base64,{'A' * 1000})"
    assert code(f"#md # Title\n\nSome *text*.\n{picture}", "x = 1\n\n", "", "#md  ", "y = 2\r\nz = 3") == (
        "# %% [markdown]\n# # Title\n#\n# Some *text*.\n\n# %% cell 2\nx = 1\n\n# %% cell 5\ny = 2\nz = 3\n"
    )


def test_each_line_knows_its_place() -> None:
    made = script("#md text", "# c\n!ls\nx = 1", "%env A=1\ny = 2")
    lines = made.text.splitlines()
    places = {line: str(made.places.of(number)) for number, line in enumerate(lines, start=1) if line}
    assert places["x = 1"] == "cell 2:3"
    assert places["y = 2"] == "cell 3:2"
    assert places["# text"] == "cell 1:1"
    assert len(made.places.lines) == len(lines)
    (remark,) = made.remarks
    assert str(made.places.of(remark.line)) == "cell 2:2"


def test_figures_stay_and_a_note_says_where_they_are_seen() -> None:
    made = script(PLOT, "plt.rcParams.update({})\nplt.plot(x)\nplt.show()", "plt.plot(x)\n")
    assert made.text.endswith("plt.plot(x)\nplt.show()\n\n# %% cell 3\nplt.plot(x)\n")
    assert [str(made.places.of(each.line)) for each in made.remarks] == ["cell 2:1", "cell 3:1"]
    assert {each.what for each in made.remarks} == {made.remarks[0].what}
    assert "a window, or not at all" in made.remarks[0].what


@pytest.mark.parametrize(
    ("cell", "out"),
    [
        ("x = 3\nx + 1", "4\n"),
        ("s = 'é'; [s,\n 'ü']", "['é', 'ü']\n"),
        ("1, 'a'", "(1, 'a')\n"),
        ("display('é'); x = get_ipython()\nx", "é\n"),
        ("3 + 4;", ""),
        ("def display(x): print('own', x)\ndisplay(1)", "own 1\n"),
        ("from pprint import pprint as display\ndisplay([1])", "[1]\n"),
    ],
)
def test_what_a_cell_shows_is_printed(cell: str, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(script(cell).text, {})
    assert capsys.readouterr().out == out


def test_what_belongs_on_top_goes_there() -> None:
    text = script("x = 1", "from __future__ import annotations\nfiles = !ls").text
    assert text.splitlines()[1:3] == ["from __future__ import annotations", "import subprocess"]
    assert "# from __future__ import annotations" in text


def test_a_mistake_is_named_by_its_cell() -> None:
    with pytest.raises(BadInput) as error:
        script("#md text", "x = 1", "y = (1\n", "z = 2")
    assert str(error.value).startswith("train.ipynb:cell 3:1:5: syntax error: '(' was never closed")


FRAGMENTS = [
    *"!ls|!pip install \\|  -q x|%time|%time x = 1|%%time|%%bash|%cd a|%env A=1|a = !ls|a = %time f()|?x|x?".split("|"),
    *"if a:|    !ls|    %time b()|import matplotlib.pyplot as plt|plt.plot(1)|plt.show()|for i in b:".split("|"),
    *"    plt.show()|x = plt.show()|a = 1; plt.show(); b = 2|x = (|1)|'''|s = 'é'; display(1)|display(".split("|"),
    *"get_ipython()|get_ipython().system('x')|def f():|    return 1|from __future__ import annotations".split("|"),
    *"# c||\t|'é', (plt.show(),|2)|lambda: plt.show(); 1".split("|"),
]


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cells_are_a_script_with_places_or_bad_input(cells: list[list[str]]) -> None:
    with contextlib.suppress(BadInput):
        made = script(*("\n".join(lines) for lines in cells))
        assert len(made.places.lines) == made.text.count("\n")
