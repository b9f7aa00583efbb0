"""MODEL -> GRAPH: record what a module computes for inputs of one shape."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.fx.proxy import TraceError

from autodual._errors import ArgumentError, AutodualError, CaptureError, UnsupportedOperationError
from autodual._types import Shape
from autodual.graph.network import Attribute, Network, Node, Ref, tensor_method
from autodual.graph.registry import Registry
from autodual.graph.tracer import ConcreteTracer

CAPTURE_BATCH = 7
"""Size of the batch that is traced: unlikely to be confused with another dimension."""


class _Root(nn.Module):
    """Gives every model a forward of exactly one argument."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        return self.model(x)


def capture(model: nn.Module, example: Tensor, registry: Registry) -> Network:
    """The graph of `model` for inputs shaped like `example` [N, *shape]; only the first example's values are used."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    sample = example.detach()[:1].expand(CAPTURE_BATCH, *example.shape[1:]).clone()
    root = _Root(model)
    root.training = model.training
    tracer = ConcreteTracer(registry, sample)
    graph = _trace(tracer, root)
    return _to_network(model, root, tracer, graph, tuple(example.shape[1:]))


def _trace(tracer: ConcreteTracer, root: _Root) -> fx.Graph:
    try:
        with torch.no_grad():
            return tracer.trace(root)
    except AutodualError:
        raise
    except TraceError as error:
        raise CaptureError(
            f"{_strip(tracer.where) or 'model'}: control flow that depends on the input's values cannot be bounded as one "
            f"network ({error}). Replace it by operations on tensors (torch.maximum, clamp, a mask that is a constant), or "
            f"move it out of the module that you certify"
        ) from error
    except Exception as error:
        raise CaptureError(
            f"{_strip(tracer.where) or 'model'}: could not be captured for an input of shape "
            f"{tuple(tracer.sample.shape)}: {type(error).__name__}: {error}"
        ) from error


def _to_network(model: nn.Module, root: _Root, tracer: ConcreteTracer, graph: fx.Graph, shape: Shape) -> Network:
    nodes: list[Node] = []
    index: dict[fx.Node, int] = {}
    names: dict[str, int] = {}
    output = None
    for fx_node in graph.nodes:
        args, kwargs = _replace(
            (fx_node.args, fx_node.kwargs), lambda a: Ref(index[a]) if isinstance(a, fx.Node) else a
        )
        if fx_node.op == "output":
            output = args[0]
            break
        path = _strip(tracer.paths.get(fx_node, ""))
        depends = fx_node.op == "placeholder" or any(nodes[i].depends for i in _refs((args, kwargs)))
        target = _target(root, tracer, fx_node)
        node_shape = _example_shape(tracer.values[fx_node], path or str(fx_node.target)) if depends else ()
        name = _unique(_name(fx_node, path), names)
        index[fx_node] = len(nodes)
        node = Node(name, path, target, args, kwargs, depends, node_shape)
        if depends and target is not None:
            _check_supported(node, tracer.registry)
        nodes.append(node)
    if not isinstance(output, Ref) or not nodes[output.index].depends:
        raise CaptureError(
            "model: must return one tensor that depends on its input; wrap a model that returns several "
            "values in a module that returns the one to be bounded"
        )
    used = _reachable(nodes, output.index)
    return _compact(model, nodes, output.index, used, shape, tracer.registry)


def _compact(
    model: nn.Module, nodes: list[Node], output: int, used: set[int], shape: Shape, registry: Registry
) -> Network:
    """Drop what does not reach the output (the input always stays, as the first node)."""
    kept = sorted(used | {next(i for i, n in enumerate(nodes) if n.target is None)})
    new = {old: i for i, old in enumerate(kept)}
    renumbered = []
    for old in kept:
        node = nodes[old]
        args, kwargs = map_aggregate((node.args, node.kwargs), lambda a: Ref(new[a.index]) if isinstance(a, Ref) else a)
        renumbered.append(Node(node.name, node.path, node.target, args, kwargs, node.depends, node.shape))
    return Network(model, tuple(renumbered), new[output], shape, CAPTURE_BATCH, registry)


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


def _check_supported(node: Node, registry: Registry) -> None:
    assert node.target is not None
    assert not isinstance(node.target, Attribute)
    if registry.builder_of(node.target) is not None:
        return
    name = type(node.target).__name__ if isinstance(node.target, nn.Module) else node.target.__name__
    nearest = registry.nearest(name)
    hint = f" Nearest supported: {', '.join(nearest)}." if nearest else ""
    raise UnsupportedOperationError(
        f"{node.path or 'model'}: the operation {name!r} has no dual layer.{hint} Add one with autodual.register "
        f"(docs/extending.md shows it in 20 lines), or move the operation out of the module that you certify"
    )


def _example_shape(value: Any, where: str) -> Shape:
    if not isinstance(value, Tensor):
        raise CaptureError(f"{where}: yields a {type(value).__name__} instead of a tensor, which cannot be bounded")
    if not value.is_floating_point():
        raise CaptureError(f"{where}: yields {value.dtype}, and only floating-point values can be bounded")
    if value.dim() == 0 or value.shape[0] != CAPTURE_BATCH:
        raise CaptureError(
            f"{where}: its result has shape {tuple(value.shape)} for a batch of {CAPTURE_BATCH}; dimension 0 must stay the "
            f"batch, because certificates are per example"
        )
    return tuple(value.shape[1:])


def _name(node: fx.Node, path: str) -> str:
    if node.op in ("placeholder", "get_attr"):
        return "input" if node.op == "placeholder" else _strip(str(node.target))
    if node.op == "call_module":
        return path or "model"
    function = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return f"{path}.{function}" if path else str(function)


def _unique(name: str, seen: dict[str, int]) -> str:
    seen[name] = seen.get(name, 0) + 1
    return name if seen[name] == 1 else f"{name}#{seen[name]}"


def _strip(path: str) -> str:
    return "" if path == "model" else path.removeprefix("model.")
