"""MODEL -> GRAPH: record what a module computes for inputs of one shape."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.fx.proxy import TraceError

from autodual._errors import ArgumentError, AutodualError, CaptureError, UnsupportedOperationError
from autodual.graph.advice import LAST_SOFTMAX, advice_about, same_name
from autodual.graph.calls import check_same
from autodual.graph.changes import check_unchanged
from autodual.graph.guards import check_no_more_than_its_class, check_not_translated, check_surroundings
from autodual.graph.network import Attribute, Network, Node, Ref, tensor_method
from autodual.graph.plain import no_random_numbers, random_state
from autodual.graph.registry import Registry
from autodual.graph.tracer import ConcreteTracer, strip

CAPTURE_BATCH, OTHER_BATCH = 13, 2
"""Sizes of the batches that are run. What is the same for both is not the batch."""


class _Root(nn.Module):
    """Gives every model a forward of exactly one argument."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        return self.model(x)


def capture(model: nn.Module, example: Tensor, registry: Registry, may_draw: bool = False) -> Network:
    """The graph of `model` for inputs shaped like `example` [N, *shape]; only the first example's values are used.

    may_draw: whether parameters may be computed with random numbers, as in a step of training, which certifies nothing.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    check_not_translated(model)
    check_surroundings(model)
    check_no_more_than_its_class(model, example)
    return _record(model, example, registry, may_draw)


def check_current(network: Network, example: Tensor) -> None:
    """Refuse a captured network whose model would be another graph by now. Parameters and buffers may have changed: they are live.

    The model is traced again and compared, call by call, with every number in it: global variables, closures and the state of
    objects steer `forward`, too, and nothing short of running it tells whether they have changed.
    """
    check_not_translated(network.model)
    check_surroundings(network.model)
    check_no_more_than_its_class(network.model, example)
    check_unchanged(network, _record(network.model, example, network.registry))


def _record(model: nn.Module, example: Tensor, registry: Registry, may_draw: bool = False) -> Network:
    root = _Root(model)
    root.training = model.training

    def sample(batch: int) -> Tensor:
        return example.detach()[:1].expand(batch, *example.shape[1:]).clone()

    with torch.inference_mode(False):
        tracer = ConcreteTracer(registry, root)
        generators = tracer.generators()
        drawn = random_state(example.device, generators)
        try:
            # With gradients, a tensor that was computed from parameters can be told from a constant.
            with torch.enable_grad(), _explained(tracer, example):
                graph = tracer.record(sample(CAPTURE_BATCH))
            network = _to_network(model, root, tracer, graph)

            def compare(batch: int, circumstances: AbstractContextManager[None]) -> None:
                again = sample(batch)  # outside of inference mode, where writes count
                with torch.inference_mode(), circumstances, _explained(tracer, example):
                    check_same(tracer.calls, tracer.run_plainly(again))

            compare(OTHER_BATCH, nullcontext())
            given = len(example)
            if tracer.told and given not in (CAPTURE_BATCH, OTHER_BATCH) and not (given == 1 and model.training):
                compare(given, nullcontext())
            if tracer.asked or not example.is_contiguous():
                _vary_circumstances(tracer, sample(OTHER_BATCH), example)
            if not may_draw and drawn != random_state(example.device, generators):  # by the model, or by another thread
                compare(OTHER_BATCH, no_random_numbers(lambda: tracer.where, generators))
        finally:
            tracer.dissolve()
    return network


def _vary_circumstances(tracer: ConcreteTracer, sample: Tensor, example: Tensor) -> None:
    """Refuse a model that computes something else for a tensor that lies otherwise in memory, or that requires gradients.

    Only for a model that has asked, or for inputs that lie otherwise. It may raise an error there: it is no function of such inputs
    then, and not another one.
    """
    sample.requires_grad_()
    for layout in _layouts(sample.dim()):
        with torch.enable_grad(), _explained(tracer, example):
            try:
                calls = tracer.run_plainly(layout(sample))
            except (AutodualError, TraceError):
                raise
            except Exception:
                continue
            check_same(tracer.calls, calls)


def _layouts(dims: int) -> list[Callable[[Tensor], Tensor]]:
    """Ways for a tensor to lie in memory: as usual, with gaps between the examples, in reverse order, with channels last.

    None of them returns the tensor itself, so that the result may be written to.
    """
    backwards = tuple(reversed(range(dims)))
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda x: x * 1,
        lambda x: torch.stack([x, x], 1)[:, 1],
        lambda x: (x * 1).permute(backwards).clone(memory_format=torch.contiguous_format).permute(backwards),
    ]
    inside = {4: torch.channels_last, 5: torch.channels_last_3d}.get(dims)
    return ways if inside is None else [*ways, lambda x: x.clone(memory_format=inside)]


@contextmanager
def _explained(tracer: ConcreteTracer, example: Tensor) -> Iterator[None]:
    """Says what an error in the user's code means for the capture, and where it was."""
    given = tuple(example.shape)  # the sample's batch is another one
    try:
        # Without autocast, the sample shows the model's own precision.
        with torch.autocast(example.device.type, enabled=False):
            yield
    except AutodualError:
        raise
    except TraceError as error:
        raise CaptureError(
            f"{tracer.place_of(error)}: control flow that depends on the input's values cannot be bounded as one "
            f"network ({error}). Replace it by operations on tensors (torch.maximum, clamp, a mask that is a constant), or "
            f"move it out of the module that you certify"
        ) from error
    except Exception as error:
        raise CaptureError(
            f"{tracer.place_of(error)}: could not be captured for an input of shape {given}. The first dimension is the batch, so one "
            f"example has shape {given[1:]}; a batch of {len(tracer.sample)} of them gave {type(error).__name__}: {error}"
        ) from error


def _to_network(model: nn.Module, root: _Root, tracer: ConcreteTracer, graph: fx.Graph) -> Network:
    nodes: list[Node] = []
    values: list[Any] = []
    index: dict[fx.Node, int] = {}
    names: dict[str, int] = {}
    output = None
    for fx_node in graph.nodes:
        args, kwargs = _replace(
            (fx_node.args, fx_node.kwargs), lambda a: Ref(index[a]) if isinstance(a, fx.Node) else a
        )
        if fx_node.op == "output":
            output = args[0]
            _check_last(fx_node.args[0])
            break
        path = tracer.paths.get(fx_node, "")
        depends = fx_node.op == "placeholder" or any(nodes[i].depends for i in _refs((args, kwargs)))
        target, value = _target(root, tracer, fx_node), tracer.values[fx_node]
        shape = tuple(value.shape[1:]) if depends and isinstance(value, Tensor) else ()
        name = _unique(_name(fx_node, path), names)
        index[fx_node] = len(nodes)
        nodes.append(Node(name, path, target, args, kwargs, depends, shape))
        values.append(value)
    if not isinstance(output, Ref) or not nodes[output.index].depends:
        raise CaptureError(
            "model: must return one tensor that depends on its input; wrap a model that returns several "
            "values in a module that returns the one to be bounded"
        )
    used = _reachable(nodes, output.index)
    _check_writes(nodes, used, list(index), tracer)
    for i in sorted(used):  # before what such an operation yields is looked at, which says less
        if nodes[i].depends:
            _check_advised(nodes[i], tracer.registry)
    for i in sorted(used):
        if nodes[i].depends:
            _check_value(values[i], nodes[i].name, tracer.sample)
            _check_supported(nodes[i], tracer.registry)
    return _compact(model, nodes, output.index, used, tracer)


def _check_writes(nodes: list[Node], used: set[int], calls: list[fx.Node], tracer: ConcreteTracer) -> None:
    """Refuse outputs in given tensors, and parameters and buffers that forward writes to and computes with."""
    for i in sorted(used):
        if nodes[i].depends and nodes[i].kwargs.get("out") is not None:
            raise CaptureError(
                f"{nodes[i].path or 'model'}: {nodes[i].name} writes into out=, which the graph would not show; use its result"
            )
    if tracer.root.training:  # statistics move, as they should
        return
    for name, writer in tracer.written.items():
        for i in sorted(used):
            reads = calls[i].op in ("get_attr", "call_module") and f"{name}.".startswith(f"{calls[i].target}.")
            if reads or calls[i] is writer:
                raise CaptureError(
                    f"{tracer.paths.get(writer, '') or 'model'}: writes into {strip(name)}, which it computes with, so that "
                    f"each run may be another function; compute a new tensor, or change parameters and buffers outside of forward"
                )


def _compact(model: nn.Module, nodes: list[Node], output: int, used: set[int], tracer: ConcreteTracer) -> Network:
    """Drop what does not reach the output (the input always stays, as the first node)."""
    kept = sorted(used | {next(i for i, n in enumerate(nodes) if n.target is None)})
    new = {old: i for i, old in enumerate(kept)}
    renumbered = []
    for old in kept:
        node = nodes[old]
        args, kwargs = map_aggregate((node.args, node.kwargs), lambda a: Ref(new[a.index]) if isinstance(a, Ref) else a)
        renumbered.append(Node(node.name, node.path, node.target, args, kwargs, node.depends, node.shape))
    batch, *shape = tracer.sample.shape
    return Network(model, tuple(renumbered), new[output], tuple(shape), batch, tracer.registry, tracer.sample.dtype)


def _replace(arguments: Any, change: Any) -> Any:
    return map_aggregate(arguments, change)


def _reachable(nodes: list[Node], output: int) -> set[int]:
    used, pending = set(), [output]
    while pending:
        index = pending.pop()
        if index not in used:
            used.add(index)
            pending.extend(nodes[index].refs)
    return used


def _refs(arguments: Any) -> list[int]:
    found: list[int] = []
    map_aggregate(arguments, lambda a: found.append(a.index) if isinstance(a, Ref) else None)
    return found


def _target(root: _Root, tracer: ConcreteTracer, node: fx.Node) -> Any:
    if node.op == "placeholder":
        return None
    name = str(node.target)
    if node.op == "get_attr":
        if name in tracer.constants:
            return Attribute(None, name, tracer.constants[name])
        owner, _, attribute = name.rpartition(".")
        return Attribute(operator.attrgetter(owner)(root) if owner else root, attribute)
    if node.op == "call_module":
        return root.get_submodule(name)
    return tensor_method(name) if node.op == "call_method" else node.target


OWN_LAYER = (
    "Add one with autodual.register (docs/extending.md shows it in 20 lines), or move the operation out of the module that you "
    "certify"
)
OTHER_ARGUMENTS = (
    "What works across dimension 0, the batch, on all dimensions at once, or in another dtype, is not: name a dimension of the "
    "example"
)
IN_DOUBT = "A dual layer of your own is added with autodual.register (docs/extending.md)"


_LAST = "refused as the last operation"


def mark_as_last(proxy: Any, name: str) -> Any:
    """The value of a rewrite that may stand inside a network, but is refused, with advice, as the last operation of one."""
    if isinstance(proxy, fx.Proxy):
        proxy.node.meta[_LAST] = name
    return proxy


def _check_last(output: Any) -> None:
    name = output.meta.get(_LAST) if isinstance(output, fx.Node) else None
    if name is not None:
        raise UnsupportedOperationError(
            f"model: ends in {name!r}, which would only make its bounds looser. {LAST_SOFTMAX}"
        )


def _check_supported(node: Node, registry: Registry) -> None:
    name = _unsupported(node, registry)
    if name is not None:
        same = same_name(name, registry.names())
        if name in registry.names():
            raise _refusal(
                node, name, f"It is supported with other arguments than these. {OTHER_ARGUMENTS}. {OWN_LAYER}"
            )
        raise _refusal(node, name, f"{'' if same is None else f'Use {same} instead. '}{OWN_LAYER}")


def _check_advised(node: Node, registry: Registry) -> None:
    """Refuse an operation that something can be said about."""
    name = _unsupported(node, registry)
    hint = None if name is None else advice_about(name)
    if name is not None and hint is not None:
        raise _refusal(node, name, f"{hint}. {IN_DOUBT}")


def _unsupported(node: Node, registry: Registry) -> str | None:
    """The name of an operation that has neither a dual layer nor a rewrite."""
    assert not isinstance(node.target, Attribute)
    if node.target is None or registry.builder_of(node.target) is not None:
        return None
    if node.target is getattr:
        return f"Tensor.{node.args[1]}"
    return type(node.target).__name__ if isinstance(node.target, nn.Module) else node.target.__name__


def _refusal(node: Node, name: str, hint: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(f"{node.path or 'model'}: the operation {name!r} has no dual layer. {hint}")


def _check_value(value: Any, where: str, sample: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise CaptureError(f"{where}: yields a {type(value).__name__} instead of a tensor, which cannot be bounded")
    if not value.is_floating_point():
        raise CaptureError(f"{where}: yields {value.dtype}, and only floating-point values can be bounded")
    if torch.finfo(value.dtype).eps > torch.finfo(sample.dtype).eps:
        raise CaptureError(
            f"{where}: computes in {value.dtype} for an input in {sample.dtype}, so the model rounds where its bounds do not; "
            f"keep one precision throughout"
        )
    if value.dim() == 0 or value.shape[0] != len(sample):
        raise CaptureError(
            f"{where}: its result has shape {tuple(value.shape)} when it is traced with a batch of {len(sample)}; dimension 0 must "
            f"stay the batch, because certificates are per example"
        )


def _name(node: fx.Node, path: str) -> str:
    if node.op in ("placeholder", "get_attr"):
        return "input" if node.op == "placeholder" else strip(str(node.target))
    if node.op == "call_module":
        return path or "model"
    function = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    if node.target is getattr:
        function = str(node.args[1])
    return f"{path}.{function}" if path else str(function)


def _unique(name: str, seen: dict[str, int]) -> str:
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else f"{name}#{seen[name]}"
