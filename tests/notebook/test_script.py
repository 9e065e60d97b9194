"""A notebook's cells as a script: what they show, where its lines stand, what a person is told."""

from __future__ import annotations

import ast
from pathlib import Path

import making
import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp2ddp.errors import BadInput
from dp2ddp.notebook.rewritten import rewritten
from dp2ddp.notebook.script import Notebook, read

PLOT = "import matplotlib.pyplot as plt"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(*cells: str, as_script: bool = True) -> Notebook:
    made = read(str(making.write(Path("train.ipynb"), *cells)), as_script=as_script)
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
    assert "Title" not in script("#md # Title", "x = 1", as_script=False).text


def test_each_line_knows_its_place() -> None:
    made = script("#md text", "!ls\nx = 1", "%env A=1\ny = 2")
    lines = made.text.splitlines()
    places = {line: str(made.places.of(number)) for number, line in enumerate(lines, start=1) if line}
    assert places["x = 1"] == "cell 2:2"
    assert places["y = 2"] == "cell 3:2"
    assert places["# text"] == "cell 1:1"
    assert len(made.places.lines) == len(lines)
    (remark,) = made.remarks
    assert str(made.places.of(remark.line)) == "cell 2:1"


def test_figures_that_are_shown_are_saved_and_closed() -> None:
    assert code(f"{PLOT}\nplt.plot([1])\nplt.show()", "plt.plot([2]); plt.show(block=False)").splitlines()[2:] == [
        "plt.plot([1])",
        'plt.savefig("train_figure_1.png"); plt.close("all")',
        "",
        "# %% cell 2",
        'plt.plot([2]); plt.savefig("train_figure_2.png"); plt.close("all")',
    ]


def test_a_figure_at_the_end_of_a_cell_is_shown_without_being_asked() -> None:
    shown = code(f"{PLOT}\nplt.style.use('ggplot')\nplt.rcParams.update({{}})", "plt.plot(x)\nplt.title('x')\n\n")
    assert shown.splitlines()[-2:] == ["plt.title('x')", 'plt.savefig("train_figure_1.png"); plt.close("all")']
    assert shown.count("savefig") == 1
    own = code(f"{PLOT}\nplt.plot(x)\nplt.savefig('mine.png')")
    assert own.splitlines()[-2:] == ["plt.savefig('mine.png')", 'plt.close("all")']
    assert "savefig" not in code(f"{PLOT}\ndef draw():\n    plt.plot(x)\nplt.plot(x)\nplt.close()")


def test_a_figure_that_is_shown_again_and_again_is_told() -> None:
    made = script("from matplotlib import pyplot\nfor i in range(3):\n    pyplot.plot([i])\n    pyplot.show()")
    assert '    pyplot.savefig("train_figure_1.png"); pyplot.close("all")' in made.text
    (remark,) = made.remarks
    assert str(made.places.of(remark.line)) == "cell 1:4"
    assert "takes the place of the one before in train_figure_1.png" in remark.what


def test_what_is_displayed_is_printed_unless_display_is_the_notebook_s_own() -> None:
    assert "print(df.head())" in code("display(df.head())")
    assert "display(df)" in code("from IPython.display import display\ndisplay(df)")
    assert "display(df)" in code("def display(x): ...", "display(df)")


@pytest.mark.parametrize(
    ("line", "becomes"),
    [
        ("from tqdm.notebook import tqdm, trange", "from tqdm.auto import tqdm, trange"),
        ("from tqdm.autonotebook import tqdm", "from tqdm.auto import tqdm"),
        ("from tqdm import tqdm_notebook as tqdm", "from tqdm import tqdm as tqdm"),
        ("from tqdm import tqdm_notebook, tnrange", "from tqdm import tqdm as tqdm_notebook, trange as tnrange"),
        ("import tqdm.notebook", "import tqdm.auto"),
        ("for x in tqdm.notebook.tqdm(a): pass", "for x in tqdm.auto.tqdm(a): pass"),
        ("import tqdm_notebook_utils", "import tqdm_notebook_utils"),
    ],
)
def test_progress_bars_are_the_terminal_s(line: str, becomes: str) -> None:
    assert code(line).splitlines()[-1] == becomes


def test_ipython_is_not_there_in_a_script() -> None:
    assert "colab = 'google' in str(None)" in code("colab = 'google' in str(get_ipython())")
    assert "# get_ipython().run_line_magic('matplotlib', 'inline')" in code(
        "get_ipython().run_line_magic('matplotlib', 'inline')"
    )
    made = script("if x:\n    get_ipython().system(\n        'ls é')\ny = 1")
    assert made.text.endswith("if x:\n    pass  # get_ipython().system(\n    # 'ls é')\ny = 1\n")
    assert [remark.what for remark in made.remarks] == ["a command that is run by the notebook, not by the script"]
    assert "get_ipython()" in code("from IPython import get_ipython\nx = get_ipython()")


def test_columns_behind_other_letters_are_right() -> None:
    assert code("s = 'é'; display(s, 'ü'); t = 1").splitlines()[-1] == "s = 'é'; print(s, 'ü'); t = 1"


def test_what_belongs_on_top_goes_there() -> None:
    text = script("x = 1", "from __future__ import annotations\nfiles = !ls").text
    assert text.splitlines()[1:3] == ["from __future__ import annotations", "import subprocess"]
    assert "# from __future__ import annotations" in text


@pytest.mark.parametrize("line", ["await f()", "x = await f()", "async with a: pass", "async for x in y: pass"])
def test_await_outside_of_functions_is_refused(line: str) -> None:
    with pytest.raises(BadInput) as error:
        script("x = 1", f"y = 1\n{line}")
    assert str(error.value).startswith("train.ipynb:cell 2:2:")
    assert "`await` outside of a function, which only notebooks have; put it into" in str(error.value)
    assert "await f()" in code("async def g():\n    await f()")


def test_a_mistake_is_named_by_its_cell() -> None:
    with pytest.raises(BadInput) as error:
        script("#md text", "x = 1", "y = (1\n", "z = 2")
    assert str(error.value).startswith("train.ipynb:cell 3:1:5: syntax error: '(' was never closed")


def test_cells_that_were_run_in_another_order_are_told() -> None:
    path = making.write(Path("train.ipynb"), "a = 1", "b = 2", "c = 3")
    notebook = nbformat.read(path, as_version=4)
    for cell, count in zip(notebook.cells, (5, 3, 9)):
        cell.execution_count = count
    nbformat.write(notebook, path)
    made = read("train.ipynb")
    (remark,) = made.remarks
    assert made.places.of(remark.line).cell == 2
    assert remark.what == "this cell was run before one above it; the script runs from top to bottom"


def test_what_needs_colab_s_process_is_told() -> None:
    (remark,) = script("from google.colab import drive\ndrive.mount('/x')").remarks
    assert remark.what.startswith("google.colab talks to the notebook's own process")


FRAGMENTS = (
    *("!ls", "!pip install \\", "  -q x", "%time", "%time x = 1", "%%time", "%%bash", "%cd a", "%env A=1", "a = !ls"),
    *(
        "a = %time f()",
        "?x",
        "x?",
        "if a:",
        "    !ls",
        "    %time b()",
        "import matplotlib.pyplot as plt",
        "plt.plot(1)",
    ),
    *(
        "plt.show()",
        "for i in b:",
        "    plt.show()",
        "x = plt.show()",
        "a = 1; plt.show(); b = 2",
        "x = (",
        "1)",
        "'''",
    ),
    *("s = 'é'; display(1)", "display(", "get_ipython()", "get_ipython().system('x')", "def f():", "    return 1"),
    *("from __future__ import annotations", "# c", "", "\t"),
)


@given(st.lists(st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cells_are_a_script_with_places_or_bad_input(cells: list[list[str]]) -> None:
    for as_script in (True, False):
        try:
            made = script(*("\n".join(lines) for lines in cells), as_script=as_script)
        except BadInput:
            continue
        assert len(made.places.lines) == made.text.count("\n")
        nbformat.validate(nbformat.reads(rewritten(made, made.text).decode(), as_version=4))
