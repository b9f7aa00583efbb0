"""Which way of turning an ``nn.Module`` into a graph copes with networks of the wild?

Every network of ``tests/zoo.py`` is captured from a sample batch of two in six ways:

* ``fx``: ``torch.fx.symbolic_trace`` as it comes;
* ``fx+value``: a tracer whose proxies carry the sample value and answer shape questions from it;
* ``fx+value+batch``: the same, but the size of dimension 0 stays a recorded expression;
* ``fx+inside``: the same again, tracing into the modules of ``torch.nn`` too (no leaf modules);
* ``export``: ``torch.export.export`` with the batch size fixed;
* ``export+batch``: ``torch.export.export`` with ``Dim("batch")``.

Run from the repository root: ``python benchmarks/capture_comparison.py``.
"""

from __future__ import annotations

import contextlib
import io
import logging
import operator
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from zoo import WILD, Wild  # type: ignore[import-not-found, unused-ignore]  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "capture_comparison.md"
SAMPLE_BATCH = 2
OTHER_BATCH = 5

# --------------------------------------------------------------------------------------------------------
# A tracer whose proxies know the value they stand for


class ValueProxy(fx.Proxy):
    """A proxy with the concrete sample value; questions about shape and type are answered from it."""

    value: Any

    def __getattr__(self, name: str) -> Any:
        if name == "value":
            raise AttributeError(name)
        if name == "shape":
            return self.size()
        if name in ("ndim", "dtype", "device", "layout", "is_cuda", "requires_grad"):
            return getattr(self.value, name)
        if callable(getattr(self.value, name)):
            return fx.proxy.Attribute(self, name)
        return self.tracer.create_proxy("call_function", getattr, (self, name), {})

    def size(self, dim: int | None = None) -> Any:
        sizes: list[Any] = list(self.value.shape)
        if getattr(self.tracer, "live_batch", False) and sizes:
            sizes[0] = self.tracer.create_proxy("call_method", "size", (self, 0), {})
        return tuple(sizes) if dim is None else sizes[dim]

    def dim(self) -> int:
        return int(self.value.dim())

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Iterator[Any]:
        for i in range(len(self.value)):
            yield self.tracer.create_proxy("call_function", operator.getitem, (self, i), {})

    def _known(self) -> Any:
        if isinstance(self.value, Tensor):
            raise fx.proxy.TraceError("the program asks for the value of a tensor, not just for its shape")
        return self.value

    def __bool__(self) -> bool:
        return bool(self._known())

    def __int__(self) -> int:
        return int(self._known())

    __index__ = __int__


class ValueTracer(fx.Tracer):
    """Runs every recorded operation on the sample as well."""

    proxy_buffer_attributes = True
    record_stack_traces = True

    def __init__(self, sample: Tensor, live_batch: bool, leaves: bool = True) -> None:
        super().__init__()
        self.sample, self.live_batch, self.leaves = sample, live_batch, leaves
        self.running = False

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self.leaves and super().is_leaf_module(m, module_qualified_name)

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        self.state = dict(root.named_parameters(remove_duplicate=False))
        self.state |= dict(root.named_buffers(remove_duplicate=False))
        self.submodules = dict(root.named_modules(remove_duplicate=False))
        with torch.no_grad():
            return super().trace(root, concrete_args)

    def proxy(self, node: fx.Node) -> ValueProxy:
        return ValueProxy(node, self)

    # While an operation runs on the sample, modules and their attributes must behave as if untraced.
    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self.running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return forward(*args, **kwargs) if self.running else super().call_module(m, forward, args, kwargs)

    def create_proxy(self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **more: Any) -> Any:
        out: Any = super().create_proxy(kind, target, args, kwargs, *rest, **more)
        args, kwargs = tree_map(lambda a: a.value if isinstance(a, ValueProxy) else a, (args, kwargs))
        self.running = True
        try:
            if kind == "placeholder":
                out.value = self.sample.clone()
            elif kind == "get_attr":
                out.value = self.state[target]
            elif kind == "call_module":
                out.value = self.submodules[target](*args, **kwargs)
            elif kind == "call_method":
                out.value = getattr(args[0], target)(*args[1:], **kwargs)
            elif kind == "call_function":
                out.value = target(*args, **kwargs)
        finally:
            self.running = False
        return out


# --------------------------------------------------------------------------------------------------------
# The ways of capturing


@dataclass
class Program:
    """A captured network: a callable, its graph, and how to name an operation of the graph."""

    call: Callable[[Tensor], Tensor]
    graph: fx.Graph
    kind_of: Callable[[fx.Node], str]
    exported: torch.export.ExportedProgram | None = None


def _fx_program(model: nn.Module, graph: fx.Graph) -> Program:
    program = fx.GraphModule(model, graph)

    def kind_of(node: fx.Node) -> str:
        if node.op == "call_module":
            return type(program.get_submodule(str(node.target))).__name__
        if node.op == "call_method":
            return f".{node.target}"
        return f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', node.target)}"

    return Program(program, graph, kind_of)


def capture_fx(model: nn.Module, sample: Tensor) -> Program:
    return _fx_program(model, fx.Tracer().trace(model))


def capture_value(model: nn.Module, sample: Tensor) -> Program:
    return _fx_program(model, ValueTracer(sample, live_batch=False).trace(model))


def capture_value_batch(model: nn.Module, sample: Tensor) -> Program:
    return _fx_program(model, ValueTracer(sample, live_batch=True).trace(model))


def capture_inside(model: nn.Module, sample: Tensor) -> Program:
    return _fx_program(model, ValueTracer(sample, live_batch=True, leaves=False).trace(model))


def _export_program(exported: torch.export.ExportedProgram) -> Program:
    return Program(exported.module(), exported.graph, lambda node: str(node.target), exported)


def capture_export(model: nn.Module, sample: Tensor) -> Program:
    return _export_program(torch.export.export(model, (sample,)))


def capture_export_batch(model: nn.Module, sample: Tensor) -> Program:
    shapes = ({0: torch.export.Dim("batch")},)
    return _export_program(torch.export.export(model, (sample,), dynamic_shapes=shapes))


METHODS: dict[str, Callable[[nn.Module, Tensor], Program]] = {
    "fx": capture_fx,
    "fx+value": capture_value,
    "fx+value+batch": capture_value_batch,
    "fx+inside": capture_inside,
    "export": capture_export,
    "export+batch": capture_export_batch,
}

# --------------------------------------------------------------------------------------------------------
# What is measured


@dataclass
class Outcome:
    """One network captured one way. Tri-state entries are ``"yes"``, ``"no ..."`` or ``"-"``."""

    error: str = ""
    message: str = ""
    seconds: float = 0.0
    nodes: int = 0
    kinds: set[str] = field(default_factory=set)
    functional_kinds: set[str] = field(default_factory=set)
    core_kinds: set[str] = field(default_factory=set)
    other_batch: str = "-"
    unguarded_batch: str = "-"
    stale: list[str] = field(default_factory=list)
    tensors: int = 0
    shared_state: tuple[int, int] = (0, 0)
    gradients: str = "-"
    follows_double: str = "-"
    follows_replaced: str = "-"
    calls: int = 0
    with_path: int = 0
    with_line: int = 0
    types: set[str] = field(default_factory=set)


def _agree(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def _attempt(check: Callable[[], bool]) -> str:
    try:
        return "yes" if check() else "no"
    except Exception as error:  # the class of whatever goes wrong is the measurement
        return f"no ({type(error).__name__})"


@torch.no_grad()
def _stale_tensors(model: nn.Module, program: Program, x: Tensor) -> tuple[list[str], int]:
    """Change each parameter and buffer in place; which changes does the program not see?"""
    stale, total = [], 0
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if not tensor.is_floating_point():
            continue
        before, saved = model(x), tensor.clone()
        tensor.mul_(1.3).add_(0.1)
        after = model(x)
        if not torch.allclose(before, after, rtol=1e-3, atol=1e-4):
            total += 1
            if not _agree(program.call(x), after):
                stale.append(name)
        tensor.copy_(saved)
    return stale, total


def _gradients_agree(model: nn.Module, program: Program, x: Tensor) -> bool:
    parameters = list(model.parameters())
    ours = torch.autograd.grad(program.call(x).square().sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad(model(x).square().sum(), parameters, allow_unused=True)
    return all(
        (a is None and b is None) or (a is not None and b is not None and _agree(a, b))
        for a, b in zip(ours, theirs, strict=True)
    )


def _double_agrees(model: nn.Module, program: Program, x: Tensor) -> bool:
    model.double()
    return _agree(program.call(x.double()), model(x.double()))


@torch.no_grad()
def _replaced_agrees(model: nn.Module, program: Program, x: Tensor) -> bool:
    """Put a new ``nn.Parameter`` object in the place of every parameter."""
    for module in list(model.modules()):
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter * 1.3 + 0.1)
    return _agree(program.call(x), model(x))


def _kinds(program: Program, graph: fx.Graph) -> set[str]:
    return {program.kind_of(node) for node in graph.nodes if node.op.startswith("call_")}


def _shares_state(model: nn.Module, exported: torch.export.ExportedProgram) -> tuple[int, int]:
    own = model.state_dict(keep_vars=True)
    return sum(v is own.get(k) for k, v in exported.state_dict.items()), len(exported.state_dict)


def measure(wild: Wild, capture: Callable[[nn.Module, Tensor], Program]) -> Outcome:
    """Capture one network in one way and put the program through every check."""
    generator = torch.Generator().manual_seed(1)
    sample = torch.rand(SAMPLE_BATCH, *wild.shape, generator=generator)
    other = torch.rand(OTHER_BATCH, *wild.shape, generator=generator)
    model, out = wild.build(), Outcome()
    start = time.perf_counter()
    try:
        program = capture(model, sample.clone())
    except Exception as error:  # the class of whatever goes wrong is the measurement
        out.error = type(error).__name__
        out.message = " ".join(str(error).split())[:200]
        return out
    out.seconds = time.perf_counter() - start
    out.nodes = len(program.graph.nodes)

    for node in program.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        out.calls += 1
        out.kinds.add(program.kind_of(node))
        out.with_path += bool(node.meta.get("nn_module_stack")) or node.op == "call_module"
        out.with_line += bool(node.stack_trace)
        stack = node.meta.get("nn_module_stack") or {}
        out.types |= {type(entry[1]).__name__ for entry in stack.values()}
    if program.exported is not None:
        out.functional_kinds = _kinds(program, program.exported.run_decompositions({}).graph)
        out.core_kinds = _kinds(program, program.exported.run_decompositions().graph)
        out.shared_state = _shares_state(model, program.exported)
        unguarded = program.exported.module(check_guards=False)
        unguarded._forward_pre_hooks.clear()  # these check the shape of the input as well
        out.unguarded_batch = _attempt(lambda: _agree(unguarded(other), model(other)))

    out.other_batch = _attempt(lambda: _agree(program.call(other), model(other)))
    out.stale, out.tensors = _stale_tensors(model, program, sample)
    out.gradients = _attempt(lambda: _gradients_agree(model, program, sample))
    out.follows_replaced = _attempt(lambda: _replaced_agrees(model, program, sample))
    model = wild.build()
    program = capture(model, sample.clone())
    out.follows_double = _attempt(lambda: _double_agrees(model, program, sample))
    return out


# --------------------------------------------------------------------------------------------------------
# Small programs that decide between right, wrong and refused


class AliasAdd(nn.Module):
    """``z += 1`` also changes ``y``, of which ``z`` is another name."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2.0
        z = y
        z += 1.0
        return y


class InplaceReluSkip(nn.Module):
    """The skip connection reads a tensor after the in-place ReLU has overwritten it."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x - 0.5
        return self.relu(y) + y


class ViewWrite(nn.Module):
    """Writes into a slice."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.0
        y[:, 0] = 0.0
        return y


class DataBranch(nn.Module):
    """A branch on the data: no single graph is right."""

    def forward(self, x: Tensor) -> Tensor:
        return -x if bool((x > 100.0).any()) else x


class ItemScale(nn.Module):
    """A Python number made from the data."""

    def forward(self, x: Tensor) -> Tensor:
        return x * float(x.max())


class BatchBranch(nn.Module):
    """A branch on the batch size."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0, keepdim=True) + x if x.shape[0] == SAMPLE_BATCH else 2.0 * x


class DetachData(nn.Module):
    """``.data`` and ``.detach()`` in the forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        return x.detach() * 2.0 + x.data


class LoopOverFirst(nn.Module):
    """Iterates over the examples of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([row * 2.0 for row in x])


class FreshConstant(nn.Module):
    """A constant tensor made in the forward pass with the dtype and device of the input."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype, device=x.device)


class RootHook(nn.Module):
    """A forward hook on the outermost module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, inputs, output: output * 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1.0


class InnerHook(nn.Module):
    """A forward hook on an inner module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = RootHook()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) - 1.0


PROBES: list[type[nn.Module]] = [
    AliasAdd,
    InplaceReluSkip,
    ViewWrite,
    DataBranch,
    ItemScale,
    BatchBranch,
    DetachData,
    LoopOverFirst,
    FreshConstant,
    RootHook,
    InnerHook,
]


def probe(make: type[nn.Module], capture: Callable[[nn.Module, Tensor], Program]) -> str:
    """Right, wrong, or refused, for inputs of the sample's shape, of another batch size and magnitude."""
    generator = torch.Generator().manual_seed(2)
    sample = torch.rand(SAMPLE_BATCH, 3, generator=generator)
    others = {
        "same shape": torch.rand(SAMPLE_BATCH, 3, generator=generator),
        "other data": 1000.0 * torch.rand(SAMPLE_BATCH, 3, generator=generator),
        "other batch": torch.rand(OTHER_BATCH, 3, generator=generator),
    }
    try:
        program = capture(make().eval(), sample.clone())
    except Exception as error:  # the class of whatever goes wrong is the measurement
        return f"refused: {type(error).__name__}"
    verdicts = []
    for name, x in others.items():
        try:
            right = _agree(program.call(x.clone()), make().eval()(x.clone()))
            if not right:
                verdicts.append(f"WRONG on {name}")
        except Exception as error:  # as above
            verdicts.append(f"{type(error).__name__} on {name}")
    mutating = sorted({k for n in program.graph.nodes if (k := _mutates(program, n))})
    return ("; ".join(verdicts) or "right") + (f" [keeps {', '.join(mutating)}]" if mutating else "")


def _mutates(program: Program, node: fx.Node) -> str:
    if not node.op.startswith("call_"):
        return ""
    name = program.kind_of(node)
    if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
        return name
    return name if name.endswith("setitem") else ""


# --------------------------------------------------------------------------------------------------------
# The report


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def _cell(out: Outcome) -> str:
    if out.error:
        return f"**{out.error}**"
    live = f"{out.tensors - len(out.stale)}/{out.tensors}"
    batch = "ok" if out.other_batch == "yes" else out.other_batch
    return f"{out.nodes} nodes, {1000 * out.seconds:.0f} ms; batch {batch}; live {live}"


def _summary_rows(results: dict[str, dict[str, Outcome]]) -> list[list[str]]:
    rows = []
    for method, by_name in results.items():
        good = [o for o in by_name.values() if not o.error]

        def count(values: list[str], out_of: int = len(good)) -> str:
            return f"{sum(v == 'yes' for v in values)}/{out_of}"

        kinds: set[str] = set().union(*(o.kinds for o in good))
        functional: set[str] = set().union(*(o.functional_kinds for o in good))
        core: set[str] = set().union(*(o.core_kinds for o in good))
        decomposed = f" ({len(functional)} functionalised, {len(core)} core ATen)" if core else ""
        types: set[str] = set().union(*(o.types for o in good))
        calls = sum(o.calls for o in good)
        rows.append(
            [
                method,
                f"{len(good)}/{len(by_name)}",
                f"{sum(o.seconds for o in good):.2f}",
                str(sum(o.nodes for o in good)),
                f"{len(kinds)}{decomposed}",
                count([o.other_batch for o in good]),
                f"{sum(o.tensors - len(o.stale) for o in good)}/{sum(o.tensors for o in good)}",
                count([o.gradients for o in good]),
                count([o.follows_replaced for o in good]),
                count([o.follows_double for o in good]),
                f"{sum(o.with_path for o in good)}/{calls} (type given as {', '.join(sorted(types)) or '-'})",
                f"{sum(o.with_line for o in good)}/{calls}",
            ]
        )
    return rows


def _complaints(o: Outcome) -> Iterator[str]:
    if o.error:
        yield f"not captured, {o.error}: {o.message}"
        return
    if o.other_batch != "yes":
        unguarded = "" if o.unguarded_batch == "-" else f"; with guards off: {o.unguarded_batch}"
        yield f"other batch: {o.other_batch}{unguarded}"
    if o.stale:
        yield f"stale: {', '.join(o.stale)}"
    if o.gradients != "yes":
        yield f"gradients: {o.gradients}"
    if o.follows_replaced != "yes":
        yield f"after replacing parameters: {o.follows_replaced}"
    if o.follows_double != "yes":
        yield f"after model.double(): {o.follows_double}"


def report(results: dict[str, dict[str, Outcome]]) -> str:
    """The whole result as Markdown."""
    lines = [
        "# Ways of capturing a network as a graph",
        "",
        "Command: `python benchmarks/capture_comparison.py`",
        "",
        f"Versions: Python {platform.python_version()}, torch {torch.__version__}, "
        f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads.",
        "",
        f"Sample batch {SAMPLE_BATCH}; the other batch has {OTHER_BATCH} examples. A tensor (parameter or "
        "buffer) is live if changing it in place changes the program's output as it changes the model's; "
        "tensors without effect on the output are not counted. Seconds are for capturing alone, after one "
        "warm-up capture per method. A call without a module path belongs to the root module.",
        "",
        "## Summary",
        "",
    ]
    header = ["method", "captured", "seconds", "graph nodes", "distinct ops", "right on other batch"]
    header += ["live tensors", "gradients reach the model", "follows replaced parameters"]
    header += ["follows model.double()"]
    header += ["calls with module path", "calls with source line"]
    lines += _table(header, _summary_rows(results))

    lines += ["", "## Per network", ""]
    detail = [[w.name, *(_cell(results[m][w.name]) for m in results)] for w in WILD]
    lines += _table(["network", *results], detail)

    lines += ["", "## What went wrong", ""]
    wrong: dict[tuple[str, str], list[str]] = {}
    for method, by_name in results.items():
        for name, o in by_name.items():
            for what in _complaints(o):
                wrong.setdefault((method, what), []).append(name)
    total = len(WILD)
    rows = [[m, what, f"all {total}" if len(ns) == total else ", ".join(ns)] for (m, what), ns in wrong.items()]
    lines += _table(["method", "what", "networks"], rows)

    lines += ["", "## Does the exported program share the model's tensors?", ""]
    same, entries = (sum(o.shared_state[i] for o in results["export+batch"].values()) for i in (0, 1))
    lines += [f"{same} of {entries} entries of `ep.state_dict` are the model's own tensor objects."]

    lines += ["", "## Probes", ""]
    lines += [f"* `{make.__name__}`: {(make.__doc__ or '').strip()}" for make in PROBES]
    probed = [[make.__name__, *(probe(make, c) for c in METHODS.values())] for make in PROBES]
    lines += ["", *_table(["probe", *METHODS], probed)]

    lines += ["", "## Distinct operations over the zoo", ""]
    for method, by_name in results.items():
        kinds: set[str] = set().union(*(o.kinds for o in by_name.values()))
        lines += [f"* `{method}` ({len(kinds)}): " + ", ".join(f"`{k}`" for k in sorted(kinds))]
    exported = results["export+batch"].values()
    for label, kinds in {
        "run_decompositions({})": set().union(*(o.functional_kinds for o in exported)),
        "run_decompositions()": set().union(*(o.core_kinds for o in exported)),
    }.items():
        lines += [f"* after `{label}` ({len(kinds)}): " + ", ".join(f"`{k}`" for k in sorted(kinds))]
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    results: dict[str, dict[str, Outcome]] = {}
    quiet = io.StringIO()  # fx and export print whole programs when one of them fails
    with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
        for method, capture in METHODS.items():
            measure(next(w for w in WILD if w.name == "mlp_gelu"), capture)  # warm-up: lazy imports
            results[method] = {wild.name: measure(wild, capture) for wild in WILD}
        text = report(results)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
