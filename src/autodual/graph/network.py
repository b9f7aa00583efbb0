"""A captured model: a frozen list of calls whose parameters stay live.

The three parts of this file: a network and its values today; how it is made of what a tracer has recorded, and what is refused
then; and whether a network is still what its model computes.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from autodual._errors import CaptureError, UnsupportedOperationError
from autodual._tensor import Shape
from autodual.graph.calls import equal
from autodual.graph.registry import LAST_SOFTMAX, Call, Operand, Registry, advice_about, parameter_hooks, same_name
from autodual.graph.twins import private_copy

if TYPE_CHECKING:
    from autodual.graph.tracer import ConcreteTracer


@dataclass(frozen=True)
class Ref:
    """A reference to an earlier node."""

    index: int


@dataclass(frozen=True)
class Attribute:
    """A live parameter, buffer or tensor of the model: read anew at every use."""

    owner: nn.Module | None
    name: str
    tensor: Tensor | None = None

    def read(self, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor of today, in another dtype if one is given."""
        value = self.tensor if self.owner is None else read_in(self.owner, self.name, dtype)
        assert isinstance(value, Tensor)
        return value if dtype is None else cast(value, dtype)

    @property
    def computed(self) -> bool:
        """Whether the model computes it from other tensors."""
        return self.owner is not None and parametrize.is_parametrized(self.owner, self.name)


@dataclass(frozen=True)
class Node:
    """One call. `depends` says whether its value depends on the network's input; `shape` is per example if so."""

    name: str
    path: str
    target: nn.Module | Callable[..., Any] | Attribute | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    depends: bool
    shape: Shape

    @property
    def refs(self) -> tuple[int, ...]:
        """Indices of the nodes among its arguments."""
        found: list[int] = []
        map_aggregate((self.args, self.kwargs), lambda a: found.append(a.index) if isinstance(a, Ref) else None)
        return tuple(found)


@dataclass(frozen=True)
class Network:
    """The graph of a model for one input shape. Holds references to the model's modules, never copies of weights."""

    model: nn.Module
    nodes: tuple[Node, ...]
    output: int
    input_shape: Shape
    batch: int
    registry: Registry
    dtype: torch.dtype
    """What the model computes in."""

    @property
    def output_shape(self) -> Shape:
        return self.nodes[self.output].shape

    def parameters_now(self, dtype: torch.dtype | None = None) -> dict[int, Any]:
        """Values of every node that does not depend on the input, computed from today's parameters.

        dtype: cast the parameters to it, and compute in it; the model's own when None.
        """
        values: dict[int, Any] = {}
        for index, node in enumerate(self.nodes):
            if node.depends:
                continue
            if isinstance(node.target, Attribute):
                values[index] = node.target.read(dtype)
            elif node.target is not None:
                args, kwargs = fill((node.args, node.kwargs), values)
                function = node.target if dtype is None else function_in(node.target, dtype)
                values[index] = function(*args, **kwargs)
        return values if dtype is None else {index: cast(value, dtype) for index, value in values.items()}

    @property
    def computes_constants(self) -> bool:
        """Whether the model computes constants, such as weights, from its parameters, so that they depend on its dtype."""
        return any(_computes_constant(node) for node in self.nodes)

    def call(
        self,
        node: Node,
        parameters: dict[int, Any],
        clean: tuple[Tensor, ...] | None = None,
        dtype: torch.dtype | None = None,
    ) -> Call:
        """The call of an input-dependent node, as its builder sees it. dtype: what parameters are cast to."""
        operands = {i: Operand(n.shape) for i, n in enumerate(self.nodes) if n.depends}
        args, kwargs = fill((node.args, node.kwargs), parameters | operands)
        module = node.target if isinstance(node.target, nn.Module) else None
        if module is not None:
            module = with_hooked_parameters(module, dtype)
        seen: Any = module if module is None or dtype is None else CastModule(module, dtype)
        return Call(node.path or node.name, node.shape, seen, args, kwargs, self.batch, clean, dtype or self.dtype)


class CastModule:
    """A module as a builder sees it, with every tensor cast: the same constants in another dtype, and no second run of its code."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._seen = module, dtype

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._seen[0])  # builders ask isinstance(call.module, nn.Identity)

    def __getattr__(self, name: str) -> Any:
        module, dtype = self.__dict__["_seen"]
        return read_in(module, name, dtype)


def _computes_constant(node: Node) -> bool:
    if isinstance(node.target, nn.Module):
        return parametrize.is_parametrized(node.target) or bool(parameter_hooks(node.target))
    return node.target.computed if isinstance(node.target, Attribute) else not node.depends


def with_hooked_parameters(module: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """The module itself; under the older, hook-based weight_norm or spectral_norm, a private copy with today's weight.

    These hooks write the weight to the module, where another thread, with or without gradients, may just be reading it.
    dtype: compute the weight in it.
    """
    hooks = parameter_hooks(module)
    if not hooks:
        return module
    private: nn.Module = object.__new__(type(module))
    vars(private).update(vars(module))
    if dtype is not None:
        _cast_tensors(private, dtype)
    for hook in hooks:
        hook(private, ())
    return private


def _cast_tensors(private: nn.Module, dtype: torch.dtype) -> None:
    """Gives a private copy of a module parameters and buffers of its own, in another dtype."""
    for table in ("_parameters", "_buffers"):
        tensors = vars(private)[table].items()
        vars(private)[table] = {name: None if t is None else cast(t.detach(), dtype) for name, t in tensors}


def read_in(module: nn.Module, name: str, dtype: torch.dtype | None) -> Any:
    """An attribute of a module in another dtype; what a parametrization computes is computed in that dtype, from a private copy."""
    if dtype is None:
        return getattr(module, name)
    if parametrize.is_parametrized(module, name):
        computes: Any = module.parametrizations[name]  # type: ignore[index]
        with torch.no_grad():
            stored, in_dtype = copy.deepcopy(computes), copy.deepcopy(computes).to(dtype)
            with _SameNumbers() as numbers:
                stored()
            with numbers.again():
                return in_dtype()
    return cast(getattr(module, name), dtype)


class _SameNumbers(TorchFunctionMode):
    """Notes the calls that compute a parameter; makes the same calls, with the same numbers, in another dtype.

    `torch.finfo(w.dtype).eps` is another number in float64, and a branch on the dtype another function.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[tuple[str, list[Any]]] = []
        self._left: Iterator[tuple[str, list[Any]]] | None = None

    def again(self) -> _SameNumbers:
        self._left = iter(self._seen)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and self._left is not None and next(self._left, None) is not None:
            raise _other_calls()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, numbers = getattr(func, "__name__", repr(func)), list[Any]()
        map_aggregate((args, kwargs or {}), lambda a: numbers.append(a) if type(a) in (int, float) else None)
        if self._left is None:
            self._seen.append((name, numbers))
            return func(*args, **(kwargs or {}))
        before = next(self._left, None)
        if before is None or (before[0], len(before[1])) != (name, len(numbers)):
            raise _other_calls()
        known = iter(before[1])
        args, kwargs = map_aggregate((args, kwargs or {}), lambda a: next(known) if type(a) in (int, float) else a)
        return func(*args, **kwargs)


def _other_calls() -> CaptureError:
    return CaptureError(
        "model: a parametrization makes other calls in float64 than in float32, so that no proof is about what runs; let it do the "
        "same for every dtype"
    )


def function_in(target: nn.Module | Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """The function itself; for a module, a private copy whose parameters and buffers have another dtype."""
    if not isinstance(target, nn.Module):
        return target
    private = private_copy(target)
    for part in private.modules():
        _cast_tensors(part, dtype)
    return private


def cast(value: Any, dtype: torch.dtype) -> Any:
    """A floating-point tensor, also inside tuples and lists, in another dtype; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
        return type(value)(cast(v, dtype) for v in value)
    return value


def fill(arguments: Any, values: dict[int, Any]) -> Any:
    """Replace references by values, inside tuples, lists, dicts and slices too. (Plain Python, which a compiler can trace.)"""
    if isinstance(arguments, Ref):
        return values[arguments.index]
    if isinstance(arguments, tuple):
        filled = [fill(a, values) for a in arguments]
        named = hasattr(arguments, "_fields")  # how Python itself knows a named tuple: they have no class in common
        return type(arguments)(*filled) if named else tuple(filled)
    if isinstance(arguments, list):
        return [fill(a, values) for a in arguments]
    if isinstance(arguments, dict):
        return {key: fill(a, values) for key, a in arguments.items()}
    if isinstance(arguments, slice):
        return slice(fill(arguments.start, values), fill(arguments.stop, values), fill(arguments.step, values))
    return arguments


# From what a tracer has recorded to a network.


def network_of(model: nn.Module, tracer: ConcreteTracer, graph: fx.Graph) -> Network:
    """The network of the recorded calls that reach the output. A call that cannot be bounded is refused."""
    *calls, end = graph.nodes
    output: Any = end.args[0]
    _check_last(output)
    depends: set[fx.Node] = set()
    for call in calls:
        if call.op == "placeholder" or not depends.isdisjoint(call.all_input_nodes):
            depends.add(call)
    if not isinstance(output, fx.Node) or output not in depends:
        keys = f", such as out[{next(iter(output))!r}]" if isinstance(output, dict) and output else ""
        raise CaptureError(
            "model: must return one tensor that depends on its input; wrap a model that returns several "
            f"values in a module that returns the one to be bounded{keys}"
        )
    used = {output}
    for call in reversed(calls):
        if call in used:
            used.update(call.all_input_nodes)
    nodes: dict[fx.Node, Node] = {}
    index: dict[fx.Node, Ref] = {}
    names: Counter[str] = Counter()

    def refer(a: Any) -> Any:
        return index[a] if isinstance(a, fx.Node) else a

    for call in calls:
        path = tracer.paths.get(call, "")
        name = _name_of(call, path)
        names[name] += 1  # calls that are not used are counted, too
        if call in used:
            name = name if names[name] == 1 else f"{name}#{names[name]}"
            args, kwargs = map_aggregate((call.args, call.kwargs), refer)
            value = tracer.values[call]
            shape = tuple(value.shape[1:]) if call in depends and isinstance(value, Tensor) else ()
            index[call] = Ref(len(nodes))
            nodes[call] = Node(name, path, _target_of(call, model, tracer), args, kwargs, call in depends, shape)
    _check_writes(model, nodes, tracer)
    bounded = [(node, tracer.values[call]) for call, node in nodes.items() if node.depends]
    for node, _ in bounded:  # first, since advice says more than a complaint about what the operation yields
        _check_supported(node, tracer.registry, with_advice=True)
    recurrent = {path for path, module in model.named_modules() if isinstance(module, nn.RNNBase)}
    for node, value in bounded:
        _check_value(value, node.name, tracer.sample, LAST_STATES if node.path in recurrent else "")
        _check_supported(node, tracer.registry)
    like, registry = tracer.sample, tracer.registry
    shape, batch = tuple(like.shape[1:]), len(like)
    return Network(model, tuple(nodes.values()), index[output].index, shape, batch, registry, like.dtype)


LAST_STATES = "Of the last states h, take h[-1], or h.transpose(0, 1); or output[:, -1], the last layer's"


def _name_of(call: fx.Node, path: str) -> str:
    """The name under which a call appears in bounds and messages."""
    if call.op == "placeholder":
        return "input"
    if call.op == "get_attr":
        return str(call.target)
    if call.op == "call_module":
        return path or "model"
    function = call.args[1] if call.target is getattr else getattr(call.target, "__name__", call.target)
    return f"{path}.{function}" if path else str(function)


def _target_of(call: fx.Node, model: nn.Module, tracer: ConcreteTracer) -> Any:
    """What a call calls: a module, a function, an attribute of the model; None for the input."""
    name = str(call.target)
    if call.op == "get_attr" and name in tracer.constants:
        return Attribute(None, name, tracer.constants[name])
    if call.op == "get_attr":
        owner, _, attribute = name.rpartition(".")
        return Attribute(model.get_submodule(owner), attribute)
    if call.op == "call_module":
        return model.get_submodule(name)
    if call.op == "call_method":
        return getattr(Tensor, name)
    return call.target if call.op == "call_function" else None


def _check_writes(model: nn.Module, nodes: dict[fx.Node, Node], tracer: ConcreteTracer) -> None:
    """Refuse outputs in given tensors, and parameters and buffers that forward writes to and computes with."""
    for node in nodes.values():
        if node.depends and node.kwargs.get("out") is not None:
            raise CaptureError(
                f"{node.path or 'model'}: {node.name} writes into out=, which the graph would not show; use its result"
            )
    if model.training:  # statistics move, as they should
        return
    read = [f"{call.target}." if call.target else "" for call in nodes if call.op in ("get_attr", "call_module")]
    for name, writer in tracer.written.items():
        if writer in nodes or f"{name}.".startswith(tuple(read)):
            raise CaptureError(
                f"{tracer.paths.get(writer, '') or 'model'}: writes into {name}, which it computes with, so that "
                f"each run may be another function; compute a new tensor, or change parameters and buffers outside of forward"
            )


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


def _check_supported(node: Node, registry: Registry, with_advice: bool = False) -> None:
    """Refuse an operation that has neither a dual layer nor a rewrite. with_advice: only one that something can be said about."""
    target: Any = node.target
    if target is None or registry.builder_of(target) is not None:
        return
    name = type(target).__name__ if isinstance(target, nn.Module) else target.__name__
    if target is getattr:
        name = f"Tensor.{node.args[1]}"
    hint = advice_about(name)
    if hint is not None:
        hint = f"{hint}. A dual layer of your own is added with autodual.register (docs/extending.md)"
    elif not with_advice:
        known = registry.names()
        same = same_name(name, known)
        other = "" if same is None else f"Use {same} instead. "
        if name in known:
            other = (
                "It is supported with other arguments than these. What works across dimension 0, the batch, on all dimensions at "
                "once, or in another dtype, is not: name a dimension of the example. "
            )
        hint = (
            f"{other}Add one with autodual.register (docs/extending.md shows it in 20 lines), or move the operation out of the "
            f"module that you certify"
        )
    if hint is not None:
        raise UnsupportedOperationError(f"{node.path or 'model'}: the operation {name!r} has no dual layer. {hint}")


def _check_value(value: Any, where: str, sample: Tensor, advice: str) -> None:
    """Refuse a value that cannot be bounded: no tensor, no floating-point numbers, less precise than the input, or no batch.

    advice: what to do where the batch is not first; general if empty.
    """
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
        second = len(sample) in value.shape[1:2]
        moved = f". {advice or 'Write torch.stack(tensors, 1) or x.unsqueeze(1)'}" if second else ""
        raise CaptureError(
            f"{where}: its result has shape {tuple(value.shape)} when it is traced with a batch of {len(sample)}; dimension 0 must "
            f"stay the batch, because certificates are per example{moved}"
        )


# Whether a network is what its model computes today.


def check_unchanged(network: Network, now: Network) -> None:
    """Refuse a captured network whose model computes something else by now; `now` is a fresh capture of the same model."""
    where, how = "model", None
    if len(network.nodes) != len(now.nodes) or network.output != now.output:
        how = f"{len(now.nodes)} operations instead of {len(network.nodes)}"
    for before, after in zip(network.nodes, now.nodes, strict=False):
        difference = _node_difference(before, after)
        if difference is not None:
            where, how = after.path or after.name, difference
            break
    if how is not None:
        raise CaptureError(
            f"{where}: computes something else than when it was captured ({how}). Numbers, hooks and modules are read when a model "
            f"is captured, and only parameters and buffers are live; capture it again"
        )


def _node_difference(before: Node, after: Node) -> str | None:
    """In what two nodes differ, in words; None if they compute the same."""
    if (before.name, before.path) != (after.name, after.path):
        return f"{before.name} was there, {after.name} is"
    if not _same_target(before.target, after.target):
        return f"{before.name} is another module, function or tensor"
    if before.shape != after.shape or before.depends != after.depends:
        return f"{before.name} has another shape"
    if same((before.args, before.kwargs), (after.args, after.kwargs)):
        return None
    return f"{before.name} has other arguments: {_shown(after)} instead of {_shown(before)}"


def _same_target(a: Any, b: Any) -> bool:
    if not (isinstance(a, Attribute) and isinstance(b, Attribute)):
        return a is b or (not isinstance(a, nn.Module) and type(a) is type(b) and bool(a == b))
    if a.tensor is None or b.tensor is None or a.tensor is b.tensor:
        return a.owner is b.owner and a.name == b.name and a.tensor is b.tensor
    one, other = a.tensor.detach(), b.tensor.detach()  # made inside forward, and so another one each time
    return one.dtype == other.dtype and one.device == other.device and equal(one, other)


def _shown(node: Node) -> str:
    told = [repr(a) for a in node.args if not isinstance(a, Ref)] + [f"{k}={v!r}" for k, v in node.kwargs.items()]
    return f"({', '.join(told)})"


def same(a: Any, b: Any, known: Callable[[Any, Any], bool | None] | None = None) -> bool:
    """Whether arguments are equal, also inside containers; -0.0 is not 0.0. known: may answer for two values, or return None."""
    answer = None if known is None else known(a, b)
    if answer is not None:
        return answer
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(same(x, y, known) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k], known) for k in a)
    if isinstance(a, slice):
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step), known)
    return repr(a) == repr(b) if isinstance(a, float | complex) else a is b or bool(a == b)
