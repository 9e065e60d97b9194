"""Ranks that nobody asks for end, and the others train as the original does: on pretend CUDA devices, as on the CPU."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from starts import Done, Warm, start, write

#: The original with `nn`, its conversion with `ddp`.
_BEGIN = """
import atexit, os, sys
from dp2ddp.pretend_cuda import install
install(3)
import torch
torch.set_num_threads(1)  # a rank's threads are as many as fit beside the others', and sums depend on them
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
if "ddp" in sys.argv:
    import dp2ddp_runtime as ddp
    ddp.setup(device_ids=[0, 1] if 'given' in sys.argv else None)
    DataLoader = lambda *args, **given: ddp.shard_loader(torch.utils.data.DataLoader(*args, **given))
    wrap, release = ddp.wrap_model, ddp.release_idle
else:
    ddp, wrap, release = None, nn.DataParallel, lambda: None
torch.manual_seed(0)
data = TensorDataset(torch.randn(38, 6), torch.randn(38, 2))
loader = DataLoader(data, 8, shuffle=True, num_workers=2 * ("workers" in sys.argv))
many = DataLoader(TensorDataset(torch.randn(99, 9999)), 99)
"""
_TRAIN = """
optimizer = torch.optim.SGD([p for each in nets for p in each.parameters()], 0.1)
for epoch in range(2):
    for x, y in loader:
        out = x.cuda()
        for each in nets:
            out = each(out)
        loss = nn.functional.mse_loss(out, y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item(), [float(p.double().sum()) for each in nets for p in each.state_dict().values()])
print("devices", ddp.device_count() if ddp else torch.cuda.device_count())
if ddp:
    print(f"{ddp.world_size()} rank(s)", file=sys.stderr)
"""
_NET = "nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)).cuda()"
_LAST = "nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2)).cuda()"
WRAPS = {
    "two of three": (f"nets = [wrap({_NET}, device_ids=[0, 1]), {_LAST}]", 2),
    "two of three, each rank's own": (
        f"nets = [wrap({_NET}, device_ids=[ddp.device()] * 2 if ddp else [0, 1]), {_LAST}]",
        2,
    ),
    "as many as are made visible": (f"os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\nnets = [wrap({_NET}), {_LAST}]", 2),
    "none": (f"nets = [{_NET}, {_LAST}]\nrelease()", 1),
    "one for a checkpoint's keys": (
        f"net = {_NET}\nkeys = wrap(net)\nkeys.load_state_dict(keys.state_dict())\ndel keys\n"
        f"nets = [net, {_LAST}]\nrelease()",
        1,
    ),
    "none, seen at the first step, with workers": (f"nets = [{_NET}, {_LAST}]", 1),
    "one for a second one": (f"nets = [wrap({_NET}, device_ids=[0, 1]), wrap({_LAST}, device_ids=[0])]", 2),
    "one for a first one, of those given": (
        f"nets = [wrap({_NET}, device_ids=[0]), wrap({_LAST}, device_ids=[0, 1])]",
        2,
    ),
    "those given, behind a training of another model": (
        "torch.optim.SGD(nn.Linear(2, 1).cuda().parameters(), 0.1).step()\n"
        f"nets = [wrap({_NET}, device_ids=[0, 1]), {_LAST}]",
        2,
    ),
    "while batches are on their way": (f"batches = iter(loader)\nnets = [wrap({_NET}, device_ids=[0, 1]), {_LAST}]", 3),
}
#: What was fetched before is whole, and what the script has registered for its end runs once.
_SCRIPT = "fixed = next(iter(many))[0]\natexit.register(print, 'end')\nWRAPS\n" + _TRAIN + "print(fixed.sum().item())\n"


def script_in(folder: Path, lines: str) -> Path:
    path = folder / "train.py"
    path.write_text(_BEGIN + lines)
    return path


def run(warm: Warm, folder: Path, script: str, *arguments: str) -> Done:
    path = script_in(folder, script)
    return warm.start(path, *arguments, nproc=None, forked=True, ranks=3, env={"DP2DDP_DEVICE": ""})


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the originals print, all of them in children of one process."""
    scripts = [textwrap.indent(_SCRIPT.replace("WRAPS", lines), "    ") for lines, _ in WRAPS.values()]
    runs = [f"if not os.fork():\n{script}    sys.exit()" for script in scripts]
    script = script_in(tmp_path_factory.mktemp("originals"), "\nos.wait()\nprint()\n".join([*runs, ""]))
    done = start(script, nproc=None, env={"DP2DDP_DEVICE": ""})
    assert done.returncode == 0, done.stderr
    return dict(zip(WRAPS, map(str.splitlines, done.stdout.split("\n\n"))))


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("wraps", WRAPS)
def test_the_ranks_that_a_wrap_asks_for_train_as_the_original(
    warm: Warm, tmp_path: Path, originals: dict[str, list[str]], wraps: str
) -> None:
    lines, ranks = WRAPS[wraps]
    converted = run(
        warm,
        tmp_path,
        _SCRIPT.replace("WRAPS", lines),
        "ddp",
        *["workers"] * (wraps == "two of three" or "workers" in wraps),
        *["given"] * ("given" in wraps),
    )
    assert converted.returncode == 0, converted.stderr
    theirs, ours = originals[wraps], converted.stdout.splitlines()
    if ranks == 3:  # the order in which three ranks' gradients are added up isn't the original's
        losses = ([float(line.split()[0]) for line in lines[:2]] for lines in (ours, theirs))
        assert next(losses) == pytest.approx(next(losses), rel=1e-5)
        theirs, ours = theirs[2:], ours[2:]
    assert ours == theirs
    assert f"{ranks} rank(s)\n" in converted.stderr
    why = f"a model is wrapped for GPU 0, {0 if 'own' in wraps else 1}" if ranks == 2 else "no model is wrapped"
    assert (
        f"{why}, so {ranks} rank(s) go on, on the first GPUs: the other {3 - ranks} of 3 end" in converted.stderr
    ) == (ranks < 3 and "given" not in wraps)


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
def test_the_functional_form_has_as_many_replicas_as_it_is_given_devices(warm: Warm, tmp_path: Path) -> None:
    script = f"""
        net = {_NET}
        sizes = []
        net[0].register_forward_hook(lambda module, given, out: sizes.append(len(out)))
        if ddp:
            out = ddp.data_parallel(net, data.tensors[0].cuda(), device_ids=[0, 1])
        else:
            out = nn.parallel.data_parallel(net, data.tensors[0].cuda(), [0, 1])
        print(out.sum().item(), sizes[0])
    """
    ours, theirs = (run(warm, tmp_path, textwrap.dedent(script), *given) for given in (["ddp"], []))
    assert (ours.returncode, theirs.returncode) == (0, 0), ours.stderr + theirs.stderr
    assert ours.stdout == theirs.stdout
    assert " 19\n" in ours.stdout


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        ("sys.exit(3)", 3, ""),
        ("os._exit(0)", 0, ""),
        ("raise ValueError('no')", 1, "of 2 failed:"),
        ("ddp.is_main() or os.kill(os.getpid(), 9); ddp.barrier()", 137, "1 of 2 was ended by signal 9"),
    ],
)
def test_how_those_that_go_on_end_is_how_the_job_ends(
    warm: Warm, tmp_path: Path, end: str, code: int, told: str
) -> None:
    script = f"""
        from dp2ddp_runtime.batches import fewer
        ddp.setup()
        fewer._go_on_with(2, "it is tested", 2)
        net = ddp.wrap_model(torch.nn.Linear(2, 2))
        net(torch.ones(6, 2)).sum().backward()
        print(ddp.world_size(), net.module.bias.grad.tolist())
        {end}
    """
    done = warm.start(write(tmp_path, script), nproc=3)
    assert done.returncode == code
    assert done.stdout == "2 [6.0, 6.0]\n"
    assert told in done.stderr
    assert done.stderr.count("dp2ddp: rank") == bool(told)


@pytest.mark.slow
@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("first", [f"wrap({_NET}, device_ids=[0, 1])", "release()"])
@pytest.mark.parametrize(
    ("before", "behind", "told"),
    [
        ("", f"wrap({_NET})", "a model is wrapped for more devices at train.py:"),
        ("", f"wrap({_NET}, device_ids=[0, 1, 2])", "a model is wrapped for more devices at train.py:"),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '2, 1'", "", "start it with CUDA_VISIBLE_DEVICES=2"),
    ],
)
def test_what_would_train_on_fewer_or_other_gpus_than_the_original_is_an_error(
    warm: Warm, tmp_path: Path, first: str, before: str, behind: str, told: str
) -> None:
    done = run(warm, tmp_path, f"{before}\n{first}\n{behind}\n", "ddp")
    assert done.returncode == 1
    assert told in done.stderr
