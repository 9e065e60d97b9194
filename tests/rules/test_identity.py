"""Times, process ids and random names: rank 0's where they end in a path or a seed, untouched elsewhere."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = """
import argparse, json, logging, os, random, shutil, socket, tempfile, time, uuid
from datetime import datetime
from pathlib import Path
import numpy as np
import torch
import torch.nn as nn
"""
_FILE_RULES = frozenset({"DDP008", "DDP011", "DDP012", "DDP018", "DDP019"})
_NET = "net = nn.DataParallel(nn.Linear(4, 2))\n"

_METER = (
    "from progress.bar import Bar\nclass Meter:\n    def __init__(self):\n        self.sum = self.count = 0\n"
    "    def update(self, val, n=1):\n        self.add(val, n)\n"
    "    def add(self, val, n):\n        self.sum += val * n\n"
    "        self.count += n\n    def average(self):\n        return self.sum / self.count\n"
)

#: Text after the imports, and what must be in its conversion (twice where it says so).
SHARED = {
    "chain": (_NET + 'torch.load(f"{datetime.now():%Y}.pt")', "{ddp.broadcast(datetime.now()):%Y}"),
    "through names": (
        _NET + 'stamp = time.time()\nname = "run%d" % stamp\nout = "x/" + name\nos.chdir(out)',
        "stamp = ddp.broadcast(time.time())",
    ),
    "through functions": (
        "def folder(root, name=None):\n    return os.path.join(root, name or uuid.uuid4().hex)\n" + _NET
        + 'torch.load(folder("a") + "/net.pt")',
        "name or ddp.broadcast(uuid.uuid4().hex)",
    ),
    "through parameters": (
        "def store(path):\n    torch.load(path)\n" + _NET + 'store(f"{socket.gethostname()}_{id(net)}.pt")',
        "{ddp.broadcast(socket.gethostname())}_{ddp.broadcast(id(net))}",
    ),
    "through attributes": (
        "class Run:\n    def __init__(self):\n        self.name = time.ctime()\n"
        "    def save(self):\n        torch.load(self.name)\n" + _NET + "Run().save()",
        "self.name = ddp.broadcast(time.ctime())",
    ),
    "through properties": (
        "class Run:\n    def __init__(self):\n        self._name = time.ctime()\n"
        "    @property\n    def name(self):\n        return self._name\n"
        "    def __getitem__(self, key):\n        return key\n" + _NET + "torch.load(Run().name)",
        "self._name = ddp.broadcast(time.ctime())",
    ),
    "through items": (
        _NET + 'cfg = {"dir": time.ctime(), "t": time.time()}\nopen(cfg["dir"])',
        '"dir": ddp.broadcast(time.ctime()), "t": time.time()',
    ),
    "seed": (_NET + "seed = int(time.time()) % 1000\nnp.random.seed(seed)", "int(ddp.broadcast(time.time()))"),
    "a folder for what is rank 0's elsewhere": (
        "def store(d):\n    torch.save(net, d + '/x')\n" + _NET + "store('runs')\nstore(tempfile.mkdtemp())",
        "store(ddp.broadcast(tempfile.mkdtemp()))",
    ),
    "before the launch": (
        "stamp = time.ctime()\nout = os.path.join('runs', stamp)\n" + _NET + "torch.load(out)",
        "torch.load(ddp.broadcast(out))",
    ),
    "an option's default": (
        "parser = argparse.ArgumentParser()\nparser.add_argument('--run-name', default=time.ctime())\n"
        "args = parser.parse_args()\n" + _NET + "run = 'runs/' + args.run_name\ntorch.load(run)",
        "'runs/' + ddp.broadcast(args.run_name)",
    ),
    "an option that is set above": (
        "args = argparse.ArgumentParser().parse_args()\nargs.save = time.ctime()\n"
        "def main():\n    torch.manual_seed(1)\n    net = nn.DataParallel(nn.Linear(4, 2))\n"
        "    torch.load(args.save)\n    os.listdir(args.save)\nmain()",
        "    ddp.setup()\n    args.save = ddp.broadcast(args.save)\n    torch.manual_seed(1)\n"
        "    net = ddp.wrap_model(nn.Linear(4, 2))\n    torch.load(args.save)\n    os.listdir(args.save)\n",
    ),
    "an option that may not be set above": (
        "args = argparse.ArgumentParser().parse_args()\nif args.new:\n    args.save = time.ctime()\n" + _NET
        + "torch.load(args.save)",
        "torch.load(ddp.broadcast(args.save))",
    ),
    "another's option of that name": (
        "args = argparse.ArgumentParser().parse_args()\nargs.save = time.ctime()\n"
        "def main(args):\n    torch.manual_seed(1)\n    net = nn.DataParallel(nn.Linear(4, 2))\n"
        "    torch.load(args.save)\nmain(Old(args))",
        "torch.load(ddp.broadcast(args.save))",
    ),
    "in one of several meters": (
        _METER + _NET + "meters = [Meter() for _ in range(2)]\n"
        "meters[0].update(time.time())\nnp.load(meters[0].average())",
        "meters[0].update(ddp.broadcast(time.time()))",
    ),
    "in that meter": (
        _METER + _NET + "took, top = Meter(), Meter()\n"
        "took.update(time.time())\ntop.update(1)\nnp.load(took.average())",
        "took.update(ddp.broadcast(time.time()))",
    ),
    "given to a base": (
        "class Base:\n    def __init__(self, log):\n        self.log = log\nclass Run(Base):\n    def __init__(self):\n"
        "        super().__init__(f'{time.time()}.pt')\n" + _NET + "run = Run()\nnp.load(run.log)",
        "super().__init__(f'{ddp.broadcast(time.time())}.pt')",
    ),
    "in the only object of a class": (
        "class Only:\n    one = None\n    def __new__(cls):\n        cls.one = cls.one or object.__new__(cls)\n"
        "        return cls.one\n" + _NET + "Only().path = time.ctime()\nnp.load(Only().path)",
        "Only().path = ddp.broadcast(time.ctime())",
    ),
    "out of a queue": (
        "import collections\nclass Job:\n    pass\n" + _NET + "jobs, job = collections.deque(), Job()\n"
        "job.path = time.ctime()\njobs.append(job)\none = jobs.pop()\nnp.load(one.path)",
        "job.path = ddp.broadcast(time.ctime())",
    ),
    "among all attributes": (
        "args = argparse.Namespace()\ncfg = argparse.Namespace()\n" + _NET + "args.x = time.ctime()\n"
        "for k, v in vars(args).items():\n    setattr(cfg, k, v)\nnp.load(cfg.x)",
        "args.x = ddp.broadcast(time.ctime())",
    ),
    "in a copy": (
        "import copy\n" + _NET + "old = Options()\nold.name = time.ctime()\nnew = copy.copy(old)\nnp.load(new.name)",
        "old.name = ddp.broadcast(time.ctime())",
    ),
    "an argument of main's": (
        "def main(stamp):\n    torch.manual_seed(1)\n    net = nn.DataParallel(nn.Linear(4, 2))\n"
        "    torch.load(stamp)\nmain(time.ctime())",
        "torch.load(ddp.broadcast(stamp))",
    ),
    "by a function that runs before the launch as well": (
        "def name():\n    return time.ctime()\nfirst = name()\nargs = argparse.ArgumentParser().parse_args()\n"
        + _NET + "torch.load(name())",
        "torch.load(ddp.broadcast(name()))",
    ),
    "by a function that is handed on": (
        "def name():\n    return time.ctime()\ndef use(get):\n    torch.load(get())\nfirst = name()\n"
        "args = argparse.ArgumentParser().parse_args()\n" + _NET + "use(name)",
        "torch.load(ddp.broadcast(get()))",
    ),
    "before the launch, within try": (
        "try:\n    stamp = time.ctime()\n    print(stamp)\n    args = argparse.ArgumentParser().parse_args()\n"
        "    net = nn.DataParallel(nn.Linear(4, 2))\n    torch.load(stamp)\nfinally:\n    print('end')",
        "torch.load(ddp.broadcast(stamp))",
    ),
}  # fmt: skip

LEFT = [
    # What is asked for behind setup begins alike on every rank.
    "from numpy.random import RandomState as State\n" + _NET + "a, b = np.random.default_rng(), State(seed=None)\n"
    "random.seed()\nnp.random.seed()\ntorch.seed()\ndef pick(rng=random.Random()):\n    return rng.choice([1])\npick()",
    # The time in one meter isn't in the next, nor in the options.
    _METER + _NET + "took, top = Meter(), Meter()\nbar = Bar(max=len(loader))\n"
    "args = argparse.ArgumentParser().parse_args()\n"
    "took.update(time.time())\ntop.update(val=1)\nbar.suffix = str(took.average())\n"
    "np.load(top.average())\nnp.load(args.suffix)",
    _NET + "start = time.time()\nprint(time.ctime(), time.time() - start, os.getpid())",
    _NET + "start = time.time()\nlr = 0.1 if time.time() > start else 1\ntorch.save(lr, 'x.pt')",
    _NET + "try:\n    net(1)\nexcept KeyboardInterrupt:\n    torch.save(net, time.ctime())",
    # A meter's `val` is not a data set's.
    "class Meter:\n    def update(self, val):\n        self.val = val\n"
    "class Images:\n    def __init__(self, root):\n        self.val = os.path.join(root, 'val')\n"
    "        self.files = os.listdir(self.val)\n" + _NET
    + "meter = Meter()\nstart = time.time()\nmeter.update(time.time() - start)\nprint(meter.val)\nImages('d')",
    # Rank 0 writes there, and nobody else looks: `open`, log handlers, folders, questions, reports, through functions.
    "from torch.utils.tensorboard import SummaryWriter\n"
    "def begin(name, root='logs'):\n    stamp = datetime.now().strftime('%y')\n    log = logging.getLogger(name)\n"
    "    os.makedirs(root, exist_ok=True)\n"
    "    log.addHandler(logging.FileHandler(os.path.join(root, '{}_{}.log'.format(name, stamp))))\n    return log\n"
    "class Run:\n    def __init__(self, root):\n        self.out = Path(root) / time.ctime()\n"
    "        self.told = {'stamp': time.ctime()}\n"
    "        if not os.path.exists(self.out):\n            os.mkdir(self.out)\n"
    "    def save(self):\n        torch.save(net, self.out / 'net.pt')\n"
    "        with open(os.path.join('told', self.told['stamp']), 'w') as file:\n"
    "            file.write(time.ctime())\n            json.dump(self.told, file)\n"
    + _NET + "begin('a').info('begun %s', time.ctime())\nrun = Run('runs')\nrun.save()\n"
    "writer = SummaryWriter(os.path.join(run.out, 'x'))\nwriter.add_text(time.ctime(), 'a')\n"
    "logging.basicConfig(filename=time.ctime())",
    # `path.py`'s folders: it writes by Python's own functions.
    "from path import Path as Folder\n" + _NET + "out = Folder('runs') / time.ctime()\nout.makedirs_p()\n"
    "open(out / 'a', 'w')",
    _NET + "t = time.strftime('%H')\nlogging.info('begun %s', t)\nlogging.info(f'runs/{t}')",
]  # fmt: skip


def _converted(text: str) -> str:
    return convert_source(_HEAD + text + "\n", "train.py", Options()).new_text


@pytest.mark.parametrize("name", list(SHARED))
def test_rank_0_chooses(name: str) -> None:
    text, expected = SHARED[name]
    new = _converted(text)
    assert expected in new, new
    assert new.count("ddp.broadcast(") == expected.count("ddp.broadcast("), new


@pytest.mark.parametrize("text", LEFT)
def test_what_only_tells_the_time_stays(text: str) -> None:
    assert "broadcast" not in _converted(text).replace("if ddp.broadcast", "").replace("ddp.broadcast(os.listdir", "")


#: Each rank has its own: it unpacks, writes and deletes there by itself.
TEMPORARY = [
    "d = tempfile.mkdtemp()\ntorch.save(net, d + '/x')\nshutil.rmtree(d)",
    "with tempfile.TemporaryDirectory() as d:\n    os.system('tar xf a.tar -C ' + d)\n    np.save(d + '/x', 1)",
    "d = Path(tempfile.mkdtemp())\n(d / 'log').mkdir()\nopen(d / 'log' / 'x', 'w').close()",
    "def store(d):\n    torch.save(net, f'{d}/x')\nstore(tempfile.mkdtemp())",
]


@pytest.mark.parametrize("text", TEMPORARY)
def test_temporary_things_stay_a_rank_s_own(text: str) -> None:
    conversion = convert_source(_HEAD + _NET + text + "\n", "train.py", Options(select=_FILE_RULES))
    assert conversion.new_text == _HEAD + _NET + text + "\n"
    assert not conversion.notes


def test_what_leaves_a_temporary_folder_is_rank_0_s() -> None:
    new = _converted(_NET + "d = tempfile.mkdtemp()\ntorch.save(net, d + '/x')\nshutil.copy(d + '/x', 'best.pt')")
    assert "torch.save(net, d + '/x')\nshutil.copy(d + '/x', 'best.pt')" in new


@pytest.mark.parametrize(
    ("line", "todo"),
    [
        (
            "def store(d):\n    torch.save(net, d + '/x')\nstore('runs')\n"
            "with tempfile.TemporaryDirectory() as d:\n    store(d)",
            "ddp.broadcast(tempfile.mkdtemp())",
        ),
        (
            "import multiprocessing\ndef load(queue):\n    np.random.seed(os.getpid())\n"
            "    queue.put(np.random.rand(8, 4))\n"
            "context = multiprocessing.get_context()\ncontext.Process(target=load, args=(queue,)).start()",
            "which of them it is",
        ),
        (
            "from threading import Thread\nclass Reader(Thread):\n    def run(self):\n"
            "        time.sleep(random.Random().random())\nReader().start()",
            "which of them it is",
        ),
        (
            "import threading\ndef f():\n    random.Random().random()\nthreading.Thread(target=f).start()",
            "which of them",
        ),
    ],
)
def test_what_can_t_be_shared_is_noted(line: str, todo: str) -> None:
    conversion = convert_source(_HEAD + _NET + textwrap.dedent(line) + "\n", "train.py", Options())
    assert [todo in note.todo for note in conversion.notes if note.rule == "DDP019"] == [True]
    assert "ddp.broadcast" not in conversion.new_text


@pytest.mark.parametrize(
    ("made", "orders", "line"),
    [
        # Of what a module's name holds `ddp.setup()` takes rank 0's state, but not what was drawn before.
        ("RNG = {0}\nRNGS = [{0}]\ndef pick():\n    return RNG.rand(8, 4) + RNGS[0].rand(8, 4)", "", 4),
        ("RNG = {0}\nORDER = RNG.permutation(8)", "", 3),
        ("RNG = {0}\ndef pick(order=RNG.permutation(8)):\n    return order", "", 3),
        ("RNG = {0}\ndef draw():\n    return RNG.permutation(8)\nORDER = draw()", "", 3),
        ("RNG = {0}", "import samples\nORDER = samples.RNG.permutation(8)", 3),
        ("RNG = {0}", "from samples import RNG as own\nORDER = own.permutation(8)", 3),
        ("RNG, N = {0}, 3", "", 3),
        ("class Held:\n    pass\nHeld.rng = {0}", "", 5),
    ],
)
def test_what_is_drawn_while_a_module_is_imported_is_noted_and_not_broadcast(made: str, orders: str, line: int) -> None:
    """There are no ranks yet: each process would broadcast to itself."""
    train = "import torch.nn as nn\nimport orders\nimport samples\n\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
    samples = f"import numpy as np\n\n{made.format('np.random.RandomState()')}\n"
    files = {"train.py": f"{train}net(samples.pick())\n", "samples.py": samples, "orders.py": orders}
    done = convert_files(files, ["train.py"], Options())
    assert "ddp.broadcast" not in done["samples.py"].new_text
    (note,) = done["samples.py"].notes
    assert (note.rule, note.span.start.line) == ("DDP019", line)
    assert "before the processes start" in note.what


def test_a_generator_that_is_seeded_at_once_is_the_same_on_every_rank() -> None:
    text = f"rng = random.Random()\nrng.seed(1)\n{_NET}net(rng.choice([x]))\n"
    assert not convert_source(_HEAD + text, "train.py", Options()).notes


def test_another_scripts_time_is_none_of_this_ones() -> None:
    """Scripts that share a file are converted together, and both call their options `args`."""
    option = 'parser = argparse.ArgumentParser()\nparser.add_argument("--name", {})\nargs = parser.parse_args()\n'
    asks = "torch.load(args.name)\n"
    nets = "import torch.nn as nn\ndef make():\n    return nn.DataParallel(nn.Linear(4, 2))\n"
    files = {
        name: f"{_HEAD}import nets\n{option.format(given)}net = nets.make()\n{asks}"
        for name, given in {"train.py": "default=time.ctime()", "test.py": "required=True"}.items()
    }
    done = convert_files({**files, "nets.py": nets}, list(files), Options())
    assert "torch.load(ddp.broadcast(args.name))" in done["train.py"].new_text
    assert asks in done["test.py"].new_text


@pytest.mark.parametrize(("more", "noted"), [("", 0), (", collate_fn=list", 2)])
def test_workers_may_seed_themselves_where_each_has_its_own_rows(more: str, noted: int) -> None:
    init = "def init(worker):\n    np.random.seed()\n    random.seed()\n"
    loader = f"loader = torch.utils.data.DataLoader(range(8), 4, num_workers=2, worker_init_fn=init{more})\n"
    loop = "for x in loader:\n    net(x.float()).sum().backward()\n"
    conversion = convert_source(_HEAD + _NET + init + loader + loop, "train.py", Options())
    assert len([note for note in conversion.notes if note.rule == "DDP019"]) == noted


def test_what_only_a_process_that_the_script_starts_may_come_to_has_no_broadcast() -> None:
    text = (
        "from multiprocessing import Process\nclass Data:\n    def shuffle(self):\n"
        "        self.rng = np.random.RandomState(os.getpid())\n"
        "def fill(data, sample):\n    sample(data)\ndrawn = getattr(Data, name)\n"
        + _NET
        + "Process(target=fill, args=(Data(), pick(name))).start()\n{}"
    )
    conversion = convert_source(_HEAD + text.format(""), "train.py", Options())
    assert "RandomState(os.getpid())\n" in conversion.new_text
    assert {note.rule for note in conversion.notes} == {"DDP019"}
    assert "RandomState(ddp.broadcast(os.getpid()))\n" in _converted(text.format("Data().shuffle()"))
