"""The stand-in for torch.cuda: what scripts say to GPUs works on the CPU."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import tiny
import torch

from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.run import runs

SCRIPT = """
import warnings
warnings.simplefilter("ignore", FutureWarning)
import numpy as np
import torch
import torch.nn as nn

device = torch.device(torch.device("cuda:0" if torch.cuda.is_available() else "cpu"))
print(device, torch.cuda.device_count(), torch.cuda.get_device_name(0), torch.cuda.is_bf16_supported())
torch.cuda.set_device(1)
with torch.cuda.device(0):
    print(torch.cuda.current_device(), end=" ")
print(torch.cuda.current_device())
torch.cuda.manual_seed(1)
torch.cuda.manual_seed_all(1)
torch.backends.cudnn.benchmark = True
torch.backends.cudnn.deterministic = True

net = nn.Sequential(nn.Linear(4, 4, device="cuda"), nn.BatchNorm1d(4), nn.Linear(4, 2)).cuda()
net = nn.DataParallel(net.to(device), device_ids=[0, 1]).to("cuda:1")
x = torch.randn(6, 4, device=device).cuda(0, non_blocking=True).to(0).to(device="cuda").pin_memory()
x = x.to("cuda", torch.get_default_dtype()).type("torch.cuda.FloatTensor").new_tensor(x.tolist(), device="cuda:0")
y = torch.zeros(6, dtype=torch.long, device="cuda:1")
assert torch.zeros_like(y, device=device).device == x.device == next(net.parameters()).device
torch.Generator(device="cuda").manual_seed(1)
assert isinstance(torch.default_generator, torch.Generator)

optimizer = torch.optim.Adam(net.parameters())
scaler = torch.cuda.amp.GradScaler()
with torch.cuda.amp.autocast():
    loss = nn.functional.cross_entropy(net(x), y)
with torch.autocast("cuda"):
    nn.functional.cross_entropy(net(x), y)
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
nn.utils.clip_grad_norm_(net.parameters(), 1.0)
scaler.step(optimizer)
scaler.update()

torch.save({"net": net.state_dict(), "scaler": scaler.state_dict()}, "net.pt")
for place in (device, "cuda:1", {"cuda:0": "cuda:1"}, lambda storage, location: storage.cuda(), None):
    net.load_state_dict(torch.load("net.pt", map_location=place)["net"])
data = torch.utils.data.TensorDataset(torch.randn(8, 2))
for workers in (0, 1):
    for (batch,) in torch.utils.data.DataLoader(data, 4, pin_memory=True, num_workers=workers):
        batch = batch.cuda(non_blocking=True)

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
with torch.cuda.stream(torch.cuda.Stream()):
    torch.cuda.current_stream().synchronize()
end.record()
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert start.elapsed_time(end) >= 0 == torch.cuda.max_memory_allocated()
torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all())
torch.set_default_device("cuda")
floats = [torch.from_numpy(np.zeros(2, dtype="float32")), x.float(), torch.ones(2, dtype=torch.float32)]
floats += [x.to(torch.float32), torch.cuda.FloatTensor([1.0])]
print(sorted({str(value.dtype) for value in floats}), torch.ones(1).device)
"""


@pytest.mark.parametrize("float64", [False, True])
def test_a_script_for_gpus_runs_on_the_cpu(tmp_path: Path, float64: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = runs.Options(replicas=2, float64=float64)
    run = tiny.run(tmp_path / "train.py", tmp_path / "run", options, original=True)
    assert run.stderr == ""
    kind = "torch.float64" if float64 else "torch.float32"
    assert run.stdout.splitlines() == ["cuda:0 2 CPU in place of a GPU True", "0 1", f"['{kind}'] cpu"]


GUARDED = """
import torch
import torch.nn as nn
import torch.nn.parallel

device = torch.device("cuda:0")

class Net(nn.Module):
    def __init__(self, ngpu):
        super().__init__()
        self.ngpu = ngpu
        self.main = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2))
        self.main[0].register_forward_pre_hook(lambda module, args: told(f"{len(args[0])} rows"))

    def forward(self, x):
        if x.is_cuda and self.ngpu > 1:
            return nn.parallel.data_parallel(self.main, x, range(self.ngpu))
        return self.main(x)

told = (lines := []).append

torch.manual_seed(1)
told(f"cuda {torch.zeros(1).is_cuda}")
nets = [Net(torch.cuda.device_count()).to(device) for _ in range(2)]
optimizer = torch.optim.SGD([p for net in nets for p in net.parameters()], lr=0.1)
for rows in (6, 5):
    x = torch.randn(rows, 4, device=device)
    told(f"cuda {x.is_cuda}")
    optimizer.zero_grad()
    (nets[0](x) + nets[1](x)).pow(2).sum().backward()
    optimizer.step()
"""


def _both(script: str, folder: Path, float64: bool = True, ends: tuple[str, str] = ("", "")) -> Comparison:
    """The script and its conversion, on two replicas, with what stands at their ends."""
    options = runs.Options(replicas=2, float64=float64)
    for name, text in (("one", script + ends[0]), ("other", tiny.converted(script) + ends[1])):
        (folder / f"{name}.py").write_text(text)
    one = tiny.run(folder / "one.py", folder / "one", options, original=True)
    return Comparison(one, tiny.run(folder / "other.py", folder / "other", options))


def test_a_guard_on_is_cuda_lets_both_sides_split_the_batch(tmp_path: Path) -> None:
    comparison = _both(GUARDED, tmp_path, ends=("print([lines])\n", "print(ddp.gather(lines))\n"))
    assert {each.kind for each in comparison.findings} == {"text"}
    assert len(comparison.steps) == 2
    before = ["cuda True", "cuda True", *["3 rows"] * 4, "cuda True", *["3 rows", "2 rows"] * 2]
    assert ast.literal_eval(comparison.original.stdout) == [before]
    ranks = ast.literal_eval(comparison.converted.stdout)
    assert ranks[0] == ["cuda True", "cuda True", *["3 rows"] * 2, "cuda True", *["3 rows"] * 2]
    assert ranks[1] == ["cuda True", "cuda True", *["3 rows"] * 2, "cuda True", *["2 rows"] * 2]


MIXED = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
inputs = torch.randn(20, 4)
targets = (inputs.sum(1) > 0).long()
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
net = nn.DataParallel(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cuda")
for epoch in range(2):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = net(x)
            loss = criterion(output, y)
        scaler.scale(4 * loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(output.dtype, scaler.get_scale())
"""
needs_scaler = pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="needs torch 2.3")


@needs_scaler
def test_mixed_precision_is_bfloat16_on_both_sides(tmp_path: Path) -> None:
    comparison = _both(MIXED, tmp_path, float64=False)
    assert comparison.findings == []
    assert len(comparison.steps) == 6
    assert comparison.original.stdout.splitlines() == ["torch.bfloat16 65536.0"] * 2
    assert [recording.mixed for recording in (comparison.ours, *comparison.ranks)] == ["bfloat16"] * 3
