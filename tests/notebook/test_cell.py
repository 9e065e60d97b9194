"""A cell in Python: what IPython adds is taken out line by line."""

from __future__ import annotations

import ast

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from dp2ddp.errors import BadInput
from dp2ddp.notebook.cell import Cell

#: A line of a cell, and what it is in a script.
LINES = {
    "!pip install -q timm": "# !pip install -q timm",
    "!!ls": "# !!ls",
    "pip install timm": "# pip install timm",
    "%matplotlib inline": "# %matplotlib inline",
    "%run other.py": "# %run other.py",
    "?print": "# ?print",
    "print??": "# print??",
    "net.fit?": "# net.fit?",
    "%time train(net)": "train(net)",
    "%time": "# %time",
    "%timeit train(net)": "# %timeit train(net)",
    "%sql select 1": "# %sql select 1",
    "loss = %time train(net)": "loss = train(net)",
    "files = !ls *.pt": "files = subprocess.getoutput('ls *.pt').splitlines()",
    'd["k"] = !ls': "d[\"k\"] = subprocess.getoutput('ls').splitlines()",
    "%cd data": "os.chdir(os.path.expanduser('data'))",
    "%cd '~/my data'": "os.chdir(os.path.expanduser('~/my data'))",
    "%env A=1": "os.environ['A'] = '1'",
    "%set_env A two words": "os.environ['A'] = 'two words'",
    "%env": "# %env",
    "home = %env HOME": "home = os.environ['HOME']",
    "here = %pwd": "here = os.getcwd()",
}
#: Lines that look like it, and are Python.
PYTHON = [
    "x = a != b",
    "print('a = !ls')",
    "'%d' % 3",
    "# !ls",
    "d['a=!ls'] = 1",
    "x = (1\n%b)",
    'x = f(a,\n"""\n!no command\n%nor magic\n""")',
    "x = 7 \\\n%b",
    "s = 'it''s'; t = \"'''\"\ny = 1",
]


def made(source: str) -> Cell:
    return Cell(source, "train.ipynb:cell 1")


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_ipython_becomes_python_or_a_comment(line: str) -> None:
    assert made(f"x = 1\n{line}\ny = 2").lines == ["x = 1", LINES[line], "y = 2"]


@pytest.mark.parametrize("source", PYTHON)
def test_python_stays(source: str) -> None:
    ast.parse(source)
    cell = made(f"{source}\n!ls")
    assert cell.lines == [*source.split("\n"), "# !ls"]


@pytest.mark.parametrize("source", [*PYTHON, *(line for line in LINES if not line.startswith("pip"))])
def test_ipython_agrees_on_what_is_python(source: str) -> None:
    changed = TransformerManager().transform_cell(f"{source}\n") != f"{source}\n"
    assert changed == (made(source).lines != source.split("\n"))


def test_a_body_that_is_only_a_command_stays_a_body() -> None:
    cell = made("if colab:\n    !pip install \\\n        timm\nx = 1")
    assert cell.lines == ["if colab:", "    pass  # !pip install \\", "#         timm", "x = 1"]
    ast.parse("\n".join(cell.lines))


def test_commands_are_told_with_all_of_their_lines() -> None:
    cell = made("!pip install \\\n  timm\nimport timm\n%sql select 1\n%run other.py")
    assert cell.lines == ["# !pip install \\", "#   timm", "import timm", "# %sql select 1", "# %run other.py"]
    assert cell.remarks[0][:2] == (1, "`!pip install` is run by the notebook, not by the script")
    assert [remark.line for remark in cell.remarks] == [1, 4, 5]


def test_a_magic_on_top_of_a_cell_says_what_its_lines_are() -> None:
    assert made("\n%%time\nx = 1\n!ls").lines == ["", "# %%time", "x = 1", "# !ls"]
    assert made("%%capture out\nx = 1").lines == ["# %%capture out", "x = 1"]
    other = made("%%bash\nls\n\nx=1")
    assert other.lines == ["# %%bash", "# ls", "#", "# x=1"]
    assert [remark.what for remark in other.remarks] == ["the cell `%%bash` is run by the notebook, not by the script"]
    assert made("%%html\n<b>x</b>").remarks == []


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("files = !ls $folder", "`files = !ls $folder`"),
        ("files = !ls {folder}", "`files = !ls {folder}`"),
        ("out = %sql select 1", "`out = %sql select 1`"),
        ("%cd {folder}", "`%cd {folder}`"),
        ("%cd -", "`%cd -`"),
        ("%pylab inline", "`%pylab inline`"),
    ],
)
def test_a_value_that_python_can_t_have_is_refused(line: str, shown: str) -> None:
    with pytest.raises(BadInput) as error:
        made(f"x = 1\n{line}")
    assert str(error.value).startswith(f"train.ipynb:cell 1:2: {shown} can't be put in a script; ")
