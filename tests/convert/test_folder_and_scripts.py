"""A folder's conversion of a script is the script's own, whatever else lies in the folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import write

from dp2ddp.convert import programs
from dp2ddp.convert.programs import Outcome
from dp2ddp.project import entries
from dp2ddp.project import tree as trees
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.rules import Options

LOOP = "for x in loader:\n    net(x).sum().backward()\n"
DATA = "from torch.utils.data import DataLoader\nloader = DataLoader(list(range(8)), batch_size=4)\n"
#: Scripts that share a package, of which each uses a part.
FILES = {
    "search.py": "import torch\nfrom torch import nn\nfrom lib.procedures import prepare, save\n"
    f"from options import args\nnet = nn.DataParallel(nn.Linear(1, 1))\n{DATA}{LOOP}save(net)\n",
    "listed.py": "import torch\nfrom torch import nn\nfrom lib.procedures import prepare\nfrom options import args\n"
    f"net = nn.DataParallel(nn.Linear(1, 1), device_ids=args.gpus)\n{DATA}{LOOP}print(prepare(1))\n",
    "by_one.py": f"from lib.procedures import evaluate_for_seed\nfrom torch import nn\n{DATA}"
    "if __name__ == '__main__':\n    net = evaluate_for_seed(nn.Linear(1, 1))\n    for x in loader:\n        net(x)\n",
    "collect.py": "import torch\nfrom lib.procedures import save\n"
    "if __name__ == '__main__':\n    for i in range(3):\n        save(torch.load('x'))\n",
    "eval.py": "import torch\nfrom torch import nn\nfrom lib.data import Coco\n\ndef predict():\n"
    "    net = nn.DataParallel(nn.Linear(1, 1))\n    torch.save(net(Coco().rows()), 'out.pt')\n\n"
    "if __name__ == '__main__':\n    # predict()\n    print(len(Coco().rows()))\n",
    "main.py": "from lib.trainer import Trainer\nimport options\ntraining = Trainer(options.args)\ntraining.fit()\n",
    "options.py": "import argparse\nparser = argparse.ArgumentParser()\n"
    "parser.add_argument('--gpus', type=int, nargs='+')\nargs = parser.parse_args()\n",
    "lib/__init__.py": "",
    "lib/procedures/__init__.py": "from .by_seed import evaluate_for_seed, prepare\nfrom .files import save, unused\n",
    "lib/procedures/by_seed.py": "import torch\nfrom torch import nn\n\ndef evaluate_for_seed(net):\n"
    "    device = torch.cuda.current_device()\n    return nn.DataParallel(net, device_ids=[device]).cuda(device)\n\n"
    "def prepare(seed):\n    torch.manual_seed(seed)\n    return torch.zeros(1).cuda(seed)\n",
    "lib/procedures/files.py": "import torch, time\n\ndef save(what):\n    torch.save(what, 'net.pt')\n\n"
    "def unused(what):\n    torch.save(what, str(time.time()))\n",
    "lib/data.py": "import torch\n\nclass Coco:\n    def rows(self):\n        return list(range(4))\n\n"
    "    def evaluate_detections(self, folder):\n        torch.save('x', folder)\n",
    "lib/trainer.py": f"import torch\nfrom torch import nn\nfrom lib.data import Coco\n{DATA}\n\nclass Trainer:\n"
    "    def __init__(self, args):\n        self.data = Coco().rows()\n"
    "        self.net = nn.DataParallel(nn.Linear(1, 1), device_ids=args.gpus)\n\n"
    "    def fit(self):\n        for x in loader:\n            self.net(x).sum().backward()\n"
    "        torch.save(self.net.state_dict(), 'fit.pt')\n\n"
    "    def test(self):\n        torch.save(self.net(self.data), 'test.pt')\n",
}
PARALLEL = ["by_one.py", "collect.py", "eval.py", "listed.py", "main.py", "search.py"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    write(root, FILES)
    return root


@pytest.fixture(scope="module")
def folder(project: Path) -> Outcome:
    tree = trees.scan(project)
    sources = tree.sources()
    layout = Layout(sources)
    chosen = entries.choose((), sources, layout)
    followed = [programs.follow(sources, layout, path) for path in chosen.entries]
    return programs.convert(followed, Options(), lenient=True)


def by_itself(project: Path, script: str) -> Outcome:
    sources = PythonFiles(project, late=lambda path: True)
    layout = Layout(sources)
    return programs.convert([programs.follow(sources, layout, script)], Options(), lenient=False)


def test_scripts_that_import_a_wrap_are_found(folder: Outcome) -> None:
    assert sorted(program.entry for program in folder.programs) == PARALLEL


@pytest.mark.parametrize("script", PARALLEL)
def test_a_script_is_converted_in_the_folder_as_it_is_by_itself(project: Path, folder: Outcome, script: str) -> None:
    alone = by_itself(project, script).conversions[script]
    together = folder.conversions[script]
    assert together.new_text == alone.new_text
    assert "\nddp.setup()\n" in together.new_text


def test_a_shared_file_gets_what_its_scripts_need(project: Path, folder: Outcome) -> None:
    needed: dict[str, set[str]] = {}
    for script in PARALLEL:
        for path, conversion in by_itself(project, script).conversions.items():
            needed.setdefault(path, set()).update(map(repr, conversion.edits))
    assert {path: set(map(repr, done.edits)) for path, done in folder.conversions.items() if done.edits} == {
        path: edits for path, edits in needed.items() if edits
    }
    assert needed["lib/procedures/files.py"]
    assert needed["lib/procedures/by_seed.py"]
