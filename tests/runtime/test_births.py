"""Ranks are born at the first wrap: what was started is rank 0, and alone until then."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

import pytest
from starts import TORCHRUN, Done, Warm, environment, write

WRAP = "net = ddp.wrap_model(torch.nn.Linear(3, 2))\n"
#: Whether this process has neither started another one nor opened a socket.
ALONE = """
def around():
    tasks = [f"/proc/self/task/{task}/children" for task in os.listdir("/proc/self/task")]
    children = sum(len(open(task).read().split()) for task in tasks)
    files = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return children, sum("socket" in os.readlink(file) for file in files if os.path.exists(file))
before = around()  # a test's harness has some
def alone():
    return around() == before
"""


def script(folder: Path, *parts: str) -> Path:
    """A script that calls `setup` on top."""
    return write(folder, "\n".join(["ddp.setup()", *map(textwrap.dedent, parts)]))


def lines(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_what_wraps_nothing_is_one_process(warm: Warm, tmp_path: Path) -> None:
    """Under torchrun, the other ranks have waited, and end."""
    path = script(tmp_path, ALONE, "print(ddp.world_size(), alone())\nsys.exit(int(sys.argv[1]))")
    done = warm.start(path, 3)
    assert (done.returncode, done.stdout, done.stderr) == (3, "1 True\n", "")
    launched = warm.start(*TORCHRUN, path, 0, nproc=None, forked=True)
    assert (launched.returncode, launched.stdout.split()[0]) == (0, "1")


def test_as_many_as_the_wrap_names_and_others_end(warm: Warm, tmp_path: Path) -> None:
    body = """
    net = ddp.wrap_model(torch.nn.Linear(3, 2), device_ids=[0, 1])
    print(ddp.world_size(), sorted(set(ddp.gather(os.getpid()))) != [os.getpid()], ddp.gather(ddp.rank()))
    """
    path = script(tmp_path, body)
    plain = warm.start(path, nproc=3, forked=True)
    launched = warm.start(*TORCHRUN[:-1], "--nproc-per-node=3", path, nproc=None, forked=True)
    assert launched.returncode == 0, launched.stderr
    assert lines(plain) == launched.stdout.splitlines() == ["2 True [0, 1]"]


def test_one_device_is_one_process_until_more_are_asked_for(warm: Warm, tmp_path: Path) -> None:
    """`--gpu 0`; an option that decides late; later wraps for fewer and for more devices."""
    body = """
    first = ddp.wrap_model(torch.nn.Linear(3, 2), device_ids=[0])
    print(ddp.world_size(), alone(), tuple(first(torch.ones(4, 3)).shape))
    second = ddp.wrap_model(torch.nn.Linear(3, 2), device_ids=[0, 1])
    print(ddp.world_size())
    third = ddp.wrap_model(torch.nn.Linear(3, 2), device_ids=[0])
    third(torch.ones(4, 3)).sum().backward()
    print(third.module.weight.grad.sum().item())
    try:
        ddp.wrap_model(torch.nn.Linear(3, 2), device_ids=[0, 1, 2])
    except RuntimeError as error:
        print(error)
    """
    told = lines(warm.start(script(tmp_path, ALONE, body), nproc=3, ranks=2, forked=True))
    assert told[:3] == ["1 True (4, 2)", "2", "24.0"]
    assert "train.py:" in told[3]
    assert "set DP2DDP_NPROC=3" in told[3]


def test_others_have_rank_0s_states_answers_clock_and_folder(warm: Warm, tmp_path: Path) -> None:
    """Nothing is seeded; the user is asked; a folder is named by the clock, and must not be there."""
    body = """
    import random, time
    import numpy
    split = [random.random(), numpy.random.rand(), torch.rand(()).item(), random.Random(random.random()).random()]
    name = input("name? ")
    try:
        second = input()
    except EOFError:
        second = "nothing"
    folder = f"run-{ddp.broadcast(time.time_ns())}"
    if os.path.exists(folder):
        sys.exit("it is there")
    os.makedirs(folder)
    os.chdir(folder)
    net = ddp.wrap_model(torch.nn.Linear(3, 2))
    told = ddp.gather([split, name, second, folder, os.getcwd(), torch.rand(()).item(), os.listdir()])
    assert told[0] == told[1], told
    print(told[0][1:3], len(told))
    """
    (tmp_path / "given").write_text("Ada\n")
    with open(tmp_path / "given") as given:
        done = warm.start(script(tmp_path, body), forked=True, stdin=given.fileno(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "name? ['Ada', 'nothing'] 2\n"), done.stderr


def test_generators_of_modules_are_rank_0s_from_the_wrap_on(warm: Warm, tmp_path: Path) -> None:
    made = "import random\nown, of_system, seeded = random.Random(), random.SystemRandom(), random.Random(3)\n"
    (tmp_path / "made.py").write_text(made)
    (tmp_path / "below.py").write_text("import numpy\nbits = numpy.random.default_rng()\n")
    body = """
    import made
    ddp.setup(START)
    import below
    drawn = made.seeded.random()
    ddp.wrap_model(torch.nn.Linear(3, 2))
    print(len(set(ddp.gather((made.own.random(), below.bits.random(), made.seeded.random())))))
    """
    for start in ("start='now'", ""):
        path = write(tmp_path, textwrap.dedent(body).replace("START", start))
        assert lines(warm.start(path, forked=True, cwd=tmp_path)) == ["1"], start
    assert warm.start(*TORCHRUN, path, nproc=None, forked=True, cwd=tmp_path).stdout == "1\n"


def test_sets_have_one_order_and_the_command_line_is_kept(tmp_path: Path) -> None:
    """A plain start by nobody's harness: this process begins anew with a hash seed, once.

    Also where a module has called `setup`: only lines of modules have run by then.
    """
    write(tmp_path, "ddp.setup()\ndef build():\n    return torch.nn.Linear(3, 2)\n", "nets.py")
    body = """
    import nets
    ddp.setup()
    print("once", sys.argv[1:], sys.flags.optimize, os.environ["PYTHONHASHSEED"])
    names = list({f"name {i}" for i in range(50)})
    """
    wrap = "net = ddp.wrap_model(nets.build())"
    check = "told = ddp.gather([names, sys.argv, sys.flags.optimize])\nassert told[0] == told[1]\nprint('end')"
    path = write(tmp_path, "\n".join([textwrap.dedent(body), wrap, check]))
    env = {name: text for name, text in environment(2, None).items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(
        [sys.executable, "-O", path, "--lr", "a b"], env=env, capture_output=True, text=True, timeout=120
    )
    assert lines(done) == ["once ['--lr', 'a b'] 1 0", "end"]


def test_what_modules_do_while_they_are_imported_below_setup_is_rank_0s(warm: Warm, tmp_path: Path) -> None:
    name = "name = ddp.broadcast(str(os.getpid()))\n"
    log = "import logging\nlogging.basicConfig(filename='log', level='INFO')\nlogging.info('once')\n"
    write(tmp_path, f"{name}show = ddp.main_only(open)\nshow('seen', 'a').write('x')\n{log}", "config.py")
    body = f"ddp.setup()\nimport config\n{WRAP}told = ddp.gather(config.name)\nconfig.logging.info('twice')\n"
    check = "config.show('seen', 'a').write('y')\nprint(told[0] == told[1], told[0] == str(os.getpid()))"
    assert lines(warm.start(write(tmp_path, body + check), cwd=tmp_path, forked=True)) == ["True True"]
    assert (tmp_path / "seen").read_text() == "xy"
    assert (tmp_path / "log").read_text() == "INFO:root:once\nINFO:root:twice\n"


def test_what_modules_ask_for_above_setup_is_told(warm: Warm, tmp_path: Path) -> None:
    """No rank knows there that it is one."""
    write(tmp_path, "name = ddp.broadcast(1)\n", "config.py")
    done = warm.start(write(tmp_path, f"import config\nddp.setup()\n{WRAP}"), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("dp2ddp: config.py:4 asks for what is rank 0's (ddp.broadcast, ddp.main_only) above")


def test_without_gpus_a_script_is_told_of_as_many_as_are_asked_for(warm: Warm, tmp_path: Path) -> None:
    body = f"if torch.cuda.device_count() > 1:\n    {WRAP}print(torch.cuda.device_count(), ddp.world_size())"
    assert lines(warm.start(script(tmp_path, body), forked=True)) == ["2 2"]
    assert lines(warm.start(script(tmp_path, body), nproc=None)) == ["0 1"]


@pytest.mark.parametrize("how", ["pdb", "module"])
def test_debuggers_have_rank_0_alone(warm: Warm, tmp_path: Path, how: str) -> None:
    stops = "breakpoint() if len(sys.argv) > 1 else None"
    through = "print('through', net(torch.ones(2, 3)).shape[0])"
    path = script(tmp_path, WRAP, "print('size', ddp.world_size())", stops, through)
    words, arguments = {
        "pdb": ("b 7\nc\np 'fo' 'und'\nc\nq\n", ["-m", "pdb", path]),
        "module": ("p 'fo' 'und'\nc\n", ["-m", "train", "stop"]),
    }[how]
    (tmp_path / "given").write_text(words)
    with open(tmp_path / "given") as given:
        done = warm.start(*arguments, cwd=tmp_path, stdin=given.fileno(), forked=True)
    assert done.returncode == 0, done.stderr
    assert "size 2" in done.stdout
    assert "through 2" in done.stdout
    assert done.stdout.count("found") == 1, done.stdout


def test_start_now_waits_for_nobody(warm: Warm, tmp_path: Path) -> None:
    """The ranks run at the same time: each makes a file and waits for the other's."""
    body = """
    import time
    from pathlib import Path
    with ddp.own_files():
        Path(f"began-{ddp.rank()}").touch()
        until = time.monotonic() + 60
        while not Path(f"began-{1 - ddp.rank()}").exists() and time.monotonic() < until:
            time.sleep(0.02)
    """
    path = write(tmp_path, 'ddp.setup(start="now")\n' + textwrap.dedent(body) + WRAP + "print(ddp.world_size())")
    assert lines(warm.start(path, forked=True, cwd=tmp_path)) == ["2"]


def test_a_long_time_before_the_first_wrap_is_told(warm: Warm, tmp_path: Path) -> None:
    path = script(tmp_path, "from dp2ddp_runtime import birth; birth._TOLD_AFTER = 0.0\n", WRAP)
    done = warm.start(path, forked=True)
    assert done.returncode == 0
    assert "s passed before the first wrap (train.py:7)" in done.stderr
    assert 'ddp.setup(start="now")' in done.stderr


def test_worker_processes_and_programs_of_ranks_are_no_ranks(warm: Warm, tmp_path: Path) -> None:
    """A loader's worker that imports the script again; a converted script that each rank starts, to read its output."""
    body = """
    import multiprocessing, subprocess
    def work(queue):
        ddp.setup()
        queue.put(list(ddp.wrap_model(torch.nn.Linear(3, 2))(torch.ones(5, 3)).shape))
    if __name__ == "__main__":
        if "inner" in sys.argv:
            ddp.wrap_model(torch.nn.Linear(3, 2), device_ids=[0])
            print(ddp.world_size())
            sys.exit()
        net = ddp.wrap_model(torch.nn.Linear(3, 2))
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        worker = context.Process(target=work, args=[queue])
        worker.start()
        size = queue.get()
        worker.join()
        inner = subprocess.run([sys.executable, __file__, "inner"], stdout=subprocess.PIPE, text=True).stdout
        print(ddp.gather([size, inner]))
    """
    assert lines(warm.start(script(tmp_path, body), forked=True)) == [r"[[[5, 2], '1\n'], [[5, 2], '1\n']]"]


def test_other_launchers(warm: Warm, tmp_path: Path) -> None:
    """Two processes that somebody has started."""
    url = f"file://{tmp_path}/meet"
    path = write(
        tmp_path, f"ddp.setup(init_method={url!r})\n{WRAP}print(ddp.gather([ddp.rank(), 'RANK' in os.environ]))"
    )
    with ExitStack() as stack:
        ranks = []
        for rank in "01":
            env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
            ranks.append(stack.enter_context(warm.started(path, nproc=None, env=env)))
        done = [rank.wait() for rank in ranks]
    assert done[0].stdout == "[[0, False], [1, False]]\n", done[0].stderr + done[1].stderr
    assert done[1].stdout == ""


def test_seeds_of_each_ranks_own_are_told_at_the_first_wrap(warm: Warm, tmp_path: Path) -> None:
    """Data that was made, or split, with them would differ without a word."""
    done = warm.start(
        script(tmp_path, "import random\ntorch.manual_seed(random.SystemRandom().getrandbits(40))\n" + WRAP),
        forked=True,
    )
    assert done.returncode == 1
    assert "the seed that torch was given before the first wrap at train.py:" in done.stderr
    assert "ddp.broadcast gives all ranks rank 0's value" in done.stderr


def test_a_wrap_without_setup_and_a_bad_number(warm: Warm, tmp_path: Path) -> None:
    done = warm.start(write(tmp_path, WRAP + "print(ddp.world_size())"))
    assert done.stdout == "1\n"
    assert "train.py:4: UserWarning: this wrap asks for several devices, and one process trains: put ddp.setup()" in (
        done.stderr
    )
    done = warm.start(script(tmp_path, WRAP), nproc=None, env={"DP2DDP_NPROC": "two"})
    assert done.returncode == 1
    assert done.stderr == "dp2ddp: DP2DDP_NPROC must be a number of devices, not 'two'\n"
