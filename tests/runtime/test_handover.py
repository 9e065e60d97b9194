"""What the main thread hands to threads, pools, queues and processes: they find it whole, whenever they look."""

from __future__ import annotations

from pathlib import Path

from starts import Warm, write

HANDED = """
    import concurrent.futures, multiprocessing, queue, sys, threading, time
    from torch.utils.data import DataLoader
    ddp.setup(timeout=60)
    context = multiprocessing.get_context("fork")

    class Data:
        def __len__(self):
            return 12
        def __getitem__(self, index):
            return torch.full((200, 200), float(index))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(2.0))
        def forward(self, x):
            return x * self.factor

    def late(*parts):
        time.sleep(0.2 * ddp.rank())  # ranks look at other times
        return [each["x"].double().sum().item() for each in parts]

    def into(results, *parts):
        results.put(late(*parts))

    def pooled(x, out):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(late, x, out).result(30)

    def mapped(x, out):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return [each[0] for each in pool.map(late, [x, out])]

    def threaded(x, out):
        results = queue.Queue()
        thread = threading.Thread(target=into, args=(results, x, out))
        thread.start()
        thread.join()
        return results.get()

    def queued(x, out):
        given, results = queue.Queue(), queue.Queue()
        thread = threading.Thread(target=lambda: into(results, *given.get()))
        thread.start()
        given.put((x, out))
        thread.join()
        return results.get()

    def in_a_process(x, out):
        results = context.SimpleQueue()
        process = context.Process(target=into, args=(results, x, out))
        process.start()
        found = results.get()
        process.join()
        return found

    def through_a_queue(x, out):
        given, results = context.Queue(), context.SimpleQueue()
        process = context.Process(target=lambda: into(results, *given.get()))
        process.start()
        given.put((x, out))
        found = results.get()
        process.join()
        given.close()
        given.join_thread()
        return found

    ways = [pooled, mapped, threaded, queued]
    if sys.version_info >= (3, 10):
        # Python 3.9's fork beside other threads may hang in the child, in `_PyThreadState_DeleteExcept`: it waits for a
        # lock that another thread held at that moment, and makes it anew only later (`PyOS_AfterFork_Child`).
        ways += [in_a_process, through_a_queue]
    net = ddp.wrap_model(Net())
    for x in ddp.shard_loader(DataLoader(Data(), 8)):
        with torch.no_grad():
            out = net(x)
        for way in ways:
            found = way({"x": x * 1}, {"x": out * 1})  # new ones, which nobody has looked at
            assert found == [x.double().sum().item(), out.double().sum().item()], (ddp.rank(), way, found)
    print("alike")
    """


def test_what_is_handed_over_is_whole(warm: Warm, tmp_path: Path) -> None:
    done = warm.start(write(tmp_path, HANDED), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "alike\n"), done.stderr


TRACED = """
    import io, warnings
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.data import DataLoader, TensorDataset
    warnings.simplefilter("ignore")  # of what is to come in place of torch.jit
    ddp.setup(timeout=60)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 3)).eval()
    net.requires_grad_(False)  # a traced function can't hold what gets gradients
    wrapped, other = ddp.wrap_model(net), torch.randn(5, 3, 2, 2, generator=torch.Generator().manual_seed(1))

    def through_a_graph(module, x):
        graph, *_ = torch.jit._get_trace_graph(module, (x,))  # what torch.onnx.export and others begin with
        assert "aten::constant" not in str(graph) and len(list(next(graph.inputs()).uses())) > 0, graph
        return module

    ways = {
        "traced": lambda module, x: torch.jit.trace(module, x),
        "unchecked": lambda module, x: torch.jit.trace(module, (x,), check_trace=False),
        "a function": lambda module, x: torch.jit.trace(lambda x: module(x), x, check_trace=False),
        "by name": lambda module, x: torch.jit.trace(module, example_kwarg_inputs={"input": x}, check_trace=False),
        "a graph": through_a_graph,
        "fx": lambda module, x: make_fx(module)(x),
    }
    if hasattr(torch, "export") and torch.__version__ >= "2.5":
        ways["exported"] = lambda module, x: torch.export.export(
            module, (x,), dynamic_shapes=[{0: torch.export.Dim("rows")}]).module()
    for name, way in ways.items():
        for module in [net, wrapped][:1 if name in ("exported", "by name") else 2]:
            (x,) = next(iter(ddp.shard_loader(DataLoader(TensorDataset(torch.rand(8, 3, 2, 2)), 5))))
            assert torch.equal(way(module, x)(other), net(other)), (name, type(module))
    print("alike")
    """


def test_what_is_traced_has_the_batch_as_its_input(warm: Warm, tmp_path: Path) -> None:
    done = warm.start(write(tmp_path, TRACED), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "alike\n"), done.stderr
