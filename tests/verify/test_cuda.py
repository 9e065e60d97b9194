"""The stand-in for torch.cuda: what scripts say to GPUs works on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp2ddp.verify import runs

SCRIPT = """
import warnings
warnings.simplefilter("ignore", FutureWarning)
import numpy as np
import torch
import torch.nn as nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
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
    with runs.start_original(tmp_path / "train.py", [], tmp_path / "run", options) as running:
        run = running.wait()
    assert run.exit_code == 0, run.stderr
    assert run.stderr == ""
    kind = "torch.float64" if float64 else "torch.float32"
    assert run.stdout.splitlines() == ["cuda:0 2 CPU in place of a GPU True", "0 1", f"['{kind}'] cpu"]
