"""A torch.fx tracer whose proxies know the value they stand for.

Plain symbolic tracing stops at `if x.shape[1] != 3` and at `b, c, h, w = x.shape`. Here every operation is also run on a
small sample, so shapes are plain integers while the graph is recorded; only a branch on *values* is refused.
docs/capture.md compares this with torch.export.

`torch.fx.Tracer.trace` itself is not used: it replaces methods of nn.Module for the whole process. This tracer runs on twins of
the modules instead (twins.py), and what it changes, no other thread sees.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.fx.proxy import TraceError

from autodual._errors import AutodualError, CaptureError
from autodual.graph import calls
from autodual.graph.calls import SETTABLE, SHOWN, Calls, NormalTensors, Plain, Step, Watch, memory, tensors
from autodual.graph.registry import Registry, odd_tensor, parameter_hooks
from autodual.graph.twins import ModuleState, Reads, Twins, forward_with_hooks, own_classes


@dataclass(eq=False, slots=True)
class _Part:
    """A module of the model, its twin, and what a call of it becomes."""

    path: str
    original: nn.Module
    twin: nn.Module
    rewrite: Callable[..., Any] | None
    is_one_call: bool
    state: ModuleState | None = None
    """The twin before the first run, where the module is one call or rewritten."""
    rewritten: bool = False
    """Whether its last call was rewritten; a rewrite may decline."""


class ConcreteTracer(fx.Tracer):
    """Records a graph of registered operations, expanding rewrites as they are met."""

    def __init__(self, registry: Registry, model: nn.Module) -> None:
        """model: its forward takes one argument. Nothing of it is changed."""
        super().__init__(autowrap_modules=(), param_shapes_constant=False)  # type: ignore[arg-type]
        self.registry, self.root = registry, model
        self.watch = Watch()
        self._running = False
        """True while the sample passes through an operation: nothing is recorded then."""
        self._expanding = 0
        """How many calls deep a rewrite is being recorded."""
        self._plain: Plain | None = None
        """Where a run on tensors, without proxies, is kept."""
        self._buffers: dict[int, Tensor] = {}
        """What the sample meets in place of the buffers, by their identity, during one operation."""
        self._names: dict[int, str] = {}
        """Names of parameters and buffers, by their identity."""
        self.twins = Twins(model)
        self._parts: dict[str, _Part] = {}
        for path, module in model.named_modules():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    self._names.setdefault(id(tensor), f"{path}.{name}" if path else name)
            rewrite, is_one_call = registry.rewrite_of(module), registry.builder_of(module) is not None
            self._parts[path] = _Part(path, module, self.twins.of[id(module)], rewrite, is_one_call)
        for part in self._parts.values():
            self._intercept(part)
        for part in self._parts.values():
            if part.rewrite is not None or part.is_one_call:
                part.state = ModuleState(part.twin, frozenset(hook.name for hook in parameter_hooks(part.original)))
        self._path_of = {id(part.original): path for path, part in self._parts.items()}
        self._known_twins = {id(part.twin) for part in self._parts.values()}

    def _intercept(self, part: _Part) -> None:
        """Have calls of the twin, and reads of its parameters and buffers, lead here.

        PyTorch looks for `_compiled_call_impl` on the object before it calls forward, and `nn.Module.__getattr__` looks into
        `_parameters` and `_buffers`: so the twin's class stays what it is.
        """
        original, state = part.original, vars(part.twin)
        state["_compiled_call_impl"] = functools.partial(self._call, part)
        state["_parameters"] = Reads(original._parameters, self._read_parameter)
        state["_buffers"] = Reads(original._buffers, self._read_buffer)
        state["_backward_hooks"], state["_backward_pre_hooks"] = {}, {}  # they see gradients, of which there are none

    def record(self, sample: Tensor) -> fx.Graph:
        """The graph of the model for a batch like `sample`; `calls` are what it was made by."""
        self.graph = fx.Graph()
        self.sample = sample
        self.constants: dict[str, Tensor] = {}
        self._copies: dict[str, Tensor] = {}
        """What the sample meets in place of the constants, so that a write cannot reach the user's tensors."""
        self.values: dict[fx.Node, Any] = {}
        self.paths: dict[fx.Node, str] = {}
        self.written: dict[str, fx.Node] = {}
        """Parameters and buffers that forward writes to, and the call that does."""
        self._proxies: list[ConcreteProxy] = []
        self._read: dict[str, ConcreteProxy] = {}
        """Parameters and buffers that have been read, by name."""
        self.calls = Calls(self._names, len(sample))
        result = self._parts[""].twin(self.create_proxy("placeholder", calls.INPUT, (), {}))
        if self.watch.refusal is not None:
            raise self.watch.refusal
        self.calls.output = map_aggregate(result, value_of)
        self.create_node("output", "output", (self.create_arg(result),), {})
        for name, tensor in self.constants.items():
            if not calls.equal(tensor, self._copies[name]):
                raise CaptureError(
                    "model: writes into a tensor that it made itself, or that it keeps, after it has computed with it; compute a new "
                    "tensor instead, so that the graph shows which of the two is meant"
                )
        return self.graph

    def run_plainly(self, sample: Tensor) -> Calls:
        """The calls that `forward` makes with a sample itself, instead of a proxy, after whatever earlier runs have stored."""
        self.sample, self._plain = sample, Plain(sample, self._names, self.watch)
        try:
            with self._plain as plain:
                plain.calls.output = self._parts[""].twin(sample)
            if self.watch.refusal is not None:
                raise self.watch.refusal
            return plain.calls
        finally:
            self._plain = None

    def dissolve(self) -> None:
        """Forgets the twins, so that no cycle of references keeps anything in memory."""
        self.twins.dissolve()
        for part in self._parts.values():
            part.state = None
        self.watch.forget()
        self._proxies.clear()
        self._read.clear()

    # Calls of modules.

    def _call(self, part: _Part, *args: Any, **kwargs: Any) -> Any:
        """What a call of a module means while it is traced: one node, a rewrite, or what its forward and its hooks do."""
        if self._running:
            return part.twin._call_impl(*args, **kwargs)
        self.watch.stack.append(part.path)
        try:
            self._check_state(part)
            if self._plain is None and part.rewrite is not None:
                rewritten = self._expanded((part.path,), functools.partial(part.rewrite, part.twin), args, kwargs)
                part.rewritten = rewritten is not NotImplemented
                if part.rewritten:
                    return rewritten
            if not (part.rewritten or part.is_one_call):
                return forward_with_hooks(part.twin, args, kwargs)
            if self._plain is None:
                made = self.create_proxy("call_module", part.path, args, kwargs)
            else:  # what the graph has as one call is one call here, too
                made = self._call_plainly(self._plain, part, args, kwargs)
            self._keep_state(part)
            return made
        except Exception as error:
            self.watch.fail(error)
            raise
        finally:
            self.watch.stack.pop()

    def _call_plainly(self, plain: Plain, part: _Part, args: Any, kwargs: Any) -> Any:
        self._running = True
        try:
            return plain.call(part.path, part.twin._call_impl, args, kwargs)
        finally:
            self._running = False

    def _check_state(self, part: _Part) -> None:
        """Refuse to call a module that `forward` has changed, where its dual layer is built from the module as it is otherwise."""
        name = None if part.state is None else part.state.changed()
        if name is not None:
            raise self.watch.refused(
                f"its attribute {name} is changed by a forward that then calls it, and it is bounded as it is outside of forward. "
                f"Set attributes and hooks of modules before you certify, or give each setting a module of its own"
            )

    def _keep_state(self, part: _Part) -> None:
        """Take the module for what its call has made of it: own code may store something, and in training, statistics move."""
        if part.state is not None and (part.original.training or own_classes(part.original)) and part.state.changed():
            part.state.keep()

    def _expanded(self, target: Any, rewrite: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """What a rewrite makes of a call."""
        step = self._begin_step("call_function", target, *self._concrete(args, kwargs))
        self._expanding += 1
        try:
            made = rewrite(*args, **kwargs)
        except AutodualError as error:
            self.watch.refusal = self.watch.refusal or error
            raise
        finally:
            self._expanding -= 1
        if made is not NotImplemented and step is not None:
            self.calls.finish(step, map_aggregate(made, value_of), [])
        return made

    # Calls of functions and methods: each becomes a proxy with a value.

    def proxy(self, node: fx.Node) -> ConcreteProxy:
        return ConcreteProxy(node, self)

    def create_proxy(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *rest: Any, **named: Any
    ) -> Any:
        """Records one call, runs it on the sample, and returns the proxy of its result; a fact about shapes is returned as it is."""
        if self._plain is not None:  # of something that the first run has stored
            with self._plain.one_call(), NormalTensors():
                return self._plain.unknown(self._run(kind, target, *map_aggregate((args, kwargs), value_of)))
        name = str(getattr(target, "__name__", target))
        made = self._without_a_node(kind, target, name, args, kwargs)
        if made is not NotImplemented:
            return made
        self._check_followed()
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **named)
        assert isinstance(proxy, ConcreteProxy)
        args, kwargs = self._concrete(args, kwargs)
        step = self._begin_step(kind, target, args, kwargs)
        self._check_shape(step, name)
        given = [(t, t._version) for t in tensors(args) + tensors(kwargs)]
        proxy.value = self.values[proxy.node] = self._run_on_sample(proxy.node, kind, target, args, kwargs)
        self._check_shape(step, name, proxy.value)
        self.paths[proxy.node] = self.watch.where
        written = calls.written_to(name, given, args[0] if args else None)
        if written:
            self._follow_writes(proxy, name, written)
        self._proxies.append(proxy)
        if kind == "placeholder" or kind == "get_attr":
            self.calls.name(proxy.value, target)
        elif step is not None:
            self.calls.finish(step, proxy.value, written)
        return proxy

    def _without_a_node(self, kind: str, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call returns that gets no node of its own; NotImplemented for any other.

        A fact about shapes is answered from the sample; of a function with a rewrite, the graph has what that makes of the call.
        """
        if kind != "call_function" and kind != "call_method":
            return NotImplemented
        self.watch.ask(name)
        if name in calls.FACTS:
            args, kwargs = self._concrete(args, kwargs)
            return getattr(Tensor, name)(*args, **kwargs)
        if kind == "call_method" and name in calls.OUT_OF_SIGHT:
            raise self.watch.refused(
                f"{name}() lets values leave the graph, or be written out of its sight; use operations on tensors instead"
            )
        function = target if kind == "call_function" else getattr(Tensor, name, None)
        rewrite = None if function is None else self.registry.rewrite_of(function)
        if rewrite is not None:
            return self._expanded(function, rewrite, args, kwargs)
        if function is None or not calls.is_maker(function):
            return NotImplemented
        args, kwargs = self._concrete(args, kwargs)
        return function(*args, **kwargs) if calls.makes_alike(function, args, kwargs) else NotImplemented

    def _check_followed(self) -> None:
        """Refuse an operation inside a module that is not a twin: the capture does not know how the model came by it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code is not _RECORD:
            if frame.f_code is _CALL:
                module = frame.f_locals["self"]
                path = self._path_of.get(id(module))
                if path is not None:
                    raise self.watch.refused(
                        f"calls its part {path or 'model'} by a way that the capture cannot follow (a class attribute, a cache, an "
                        f"object of another library); read it as an attribute of the model (self.name)"
                    )
                if id(module) not in self._known_twins:
                    raise self.watch.refused(
                        f"calls a {type(module).__name__} that is not one of its submodules; assign it to an attribute in __init__ "
                        f"(or use nn.ModuleList) so that its parameters belong to the model"
                    )
            frame = frame.f_back

    def _check_shape(self, step: Step | None, name: str, made: Any = None) -> None:
        if calls.shaped_by_values(step, self.calls.batch, made):
            raise self.watch.refused(
                f"the shape of what {name} makes depends on the input's values, so that the model could branch on them; use "
                f"operations whose result always has one shape"
            )

    def _begin_step(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | None:
        """Notes the call as a run on tensors would show it; None if it would show nothing, as nothing that a rewrite calls does."""
        if self._expanding or not kind.startswith("call"):
            return None
        if target is getattr or target is operator.getitem:
            if not isinstance(args[0], Tensor):  # picked from a tuple, in Python, and not by a call of torch
                return None
            if target is getattr:
                return self.calls.begin(args[1], args[:1], {}, self.watch.where)
        return self.calls.begin((target,) if kind == "call_module" else target, args, kwargs, self.watch.where)

    def _run_on_sample(
        self, node: fx.Node, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a call computes for the sample, while nothing is recorded. A call that fails loses its node."""
        self._running = True
        try:
            with NormalTensors():
                return self._run(kind, target, args, kwargs)
        except Exception:
            self.graph.erase_node(node)  # the model may catch it, and the call has made nothing
            self.watch.batch_seen = True  # for another number of examples, it may not fail
            raise
        finally:
            self._running = False

    def _run(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call computes for the sample."""
        if kind == "placeholder":
            return self.sample
        if kind == "get_attr":
            return operator.attrgetter(target)(self.root).detach().clone()
        if kind == "call_module":
            self._buffers.clear()
            return self._parts[target].twin._call_impl(*args, **kwargs)
        if kind == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _follow_writes(self, proxy: ConcreteProxy, name: str, written: list[Tensor]) -> None:
        """An in-place operation changes what every name of its tensor means: those names now stand for the result.

        What shares only memory with it (a view, what it is a view of, its .data) has changed too, and may not be read again.
        """
        if any(tensor is copy for tensor in written for copy in self._copies.values()):
            raise self.watch.refused(
                f"writes into a tensor that it made itself ({name}); use the out-of-place form, torch.cat or torch.stack instead, so "
                f"that the graph shows the dependency"
            )
        places = {memory(tensor) for tensor in written}
        self.written.update({n: proxy.node for n, p in self._read.items() if memory(p.value) in places})
        for other in self._proxies:
            if not isinstance(other.value, Tensor) or memory(other.value) not in places:
                continue
            if other.value is proxy.value:
                other.node = proxy.node
            else:
                other.overwritten = (
                    f"writes in place through a view or .data ({name}), and the tensor behind it is read again; use the out-of-place "
                    f"form so that the graph shows the dependency",
                    self.watch.where,
                )

    def to_bool(self, obj: Any) -> bool:
        raise self._depends_on_values("a branch depends on the values in a tensor")

    def iter(self, obj: Any) -> Any:
        if isinstance(obj.value, tuple | list):
            self.watch.batch_seen = True
            return (obj[i] for i in range(len(obj.value)))
        raise self._depends_on_values("a loop runs over the values in a tensor")

    def _depends_on_values(self, how: str) -> TraceError:
        error = TraceError(how)
        if self.watch.refusal is None:
            self.watch.refusal = error
            self.watch.fail(error)
        return error

    # Arguments: proxies, parameters and buffers, and tensors that are neither.

    def create_arg(self, a: Any) -> Any:
        """An argument as the graph holds it: nodes for proxies and tensors, anything else as it is."""
        kind = type(a)
        if a is None or kind is int or kind is float or kind is bool or kind is str:
            return a
        if kind is dict and not a:
            return a
        if isinstance(a, ConcreteProxy):
            if a.overwritten is not None:
                raise self.watch.refused(*a.overwritten)
            if a.node not in self.values:
                raise self.watch.refused(
                    "uses a value that an earlier capture has left behind in an object or a global variable; a model that reads what "
                    "an earlier run has stored there is no function of its input"
                )
            return a.node
        if isinstance(a, Tensor):
            if id(a) in self._names:
                return self._attribute(a).node
            name = self._constant(a)
            node = self.create_node("get_attr", name, (), {})
            self.values[node] = self._copies[name]
            return node
        if kind is tuple or (isinstance(a, tuple) and hasattr(a, "_fields")):  # which torch.fx would record as a call
            return tuple(self.create_arg(part) for part in a)
        return super().create_arg(a)

    def _concrete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments, with the sample's value in place of every proxy and of every tensor of the model."""

        def concrete(a: Any) -> Any:
            if isinstance(a, ConcreteProxy):
                return a.value
            if isinstance(a, Tensor):
                return self._attribute(a).value if id(a) in self._names else self._copies[self._constant(a)]
            return a

        return map_aggregate(args, concrete), map_aggregate(kwargs, concrete) if kwargs else {}

    def _constant(self, a: Tensor) -> str:
        """Name of a tensor that is no attribute: kept by reference, so that it stays live."""
        known = next((n for n, t in self.constants.items() if t is a), None)
        if known is not None:
            return known
        odd = odd_tensor(a)
        if odd is not None:
            raise self.watch.refused(f"a tensor that it computes with: {odd}")
        if a.grad_fn is not None:
            raise self.watch.refused(
                "uses a tensor that was computed from parameters out of sight of the capture, so it would not follow them; read "
                "parameters as attributes (self.weight), inside forward"
            )
        name = f"_tensor_{len(self.constants)}"
        with NormalTensors():
            self.constants[name], self._copies[name] = a, a.detach().clone()
        return name

    def _read_parameter(self, value: Any) -> Any:
        if self._running or not isinstance(value, Tensor):
            return value
        return self._plain.own(value) if self._plain is not None else self._attribute(value)

    def _read_buffer(self, value: Any) -> Any:
        if not self._running or not isinstance(value, Tensor):
            return self._read_parameter(value)
        if self._plain is not None:
            return self._plain.own(value)
        return self._buffers.setdefault(id(value), value.clone())

    def _attribute(self, a: Tensor) -> Any:
        """The proxy of one of the model's parameters or buffers; any other tensor as it is."""
        name = self._names.get(id(a))
        if name is None:
            return a
        if name not in self._read:
            self._read[name] = self.create_proxy("get_attr", name, (), {})
        return self._read[name]


_RECORD, _CALL = ConcreteTracer.record.__code__, nn.Module._call_impl.__code__


# Proxies, which a model meets in place of tensors.

_ASSIGNED = SETTABLE | {"tracer", "node", "value", "overwritten"}


class ConcreteProxy(fx.Proxy):
    """What a model meets in place of a tensor: it answers questions about shape, dtype and device from the sample's value."""

    tracer: ConcreteTracer
    value: Any = None
    overwritten: tuple[str, str] | None = None
    """Why it must not be read any more, and who wrote: its tensor was changed through a view, which the graph does not show."""

    def __getattr__(self, name: str) -> Any:
        """A tensor such as x.T is recorded; x.shape is a plain fact; methods are left to torch.fx."""
        self.tracer.watch.ask(name)
        found = getattr(self.value, name)
        if isinstance(found, Tensor):
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return super().__getattr__(name) if callable(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        """`x.data = y` changes what x is, and so do its like; any other name is the user's own."""
        if name not in _ASSIGNED and hasattr(Tensor, name):
            raise self.tracer.watch.refused(
                f"assigns to .{name} of a tensor, which the graph would not show; compute a new tensor"
            )
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise self.tracer.watch.refused(
            "a tensor that is captured does not support item assignment (x[...] = y), since the graph would not show it; put the "
            "parts together by torch.cat or torch.stack, or multiply by a constant mask"
        )

    def __repr__(self) -> str:
        return SHOWN

    def __iter__(self) -> Iterator[Any]:
        """A parameter may be unpacked, which a tensor does by `unbind`; iterating over the input would read its batch."""
        if isinstance(self.value, Tensor) and not self.tracer.calls.varies(self.value):
            return iter(self.unbind(0))
        return iter(super().__iter__())

    def __len__(self) -> int:
        self.tracer.watch.ask("__len__")
        return len(self.value)


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _operation in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(ConcreteProxy, f"__i{_operation}__", _in_place(getattr(operator, f"__i{_operation}__")))


def value_of(a: Any) -> Any:
    return a.value if isinstance(a, ConcreteProxy) else a


def depends(a: Any) -> bool:
    """Whether a value that a rewrite is given is computed from the network's input, and not from parameters alone."""
    if not isinstance(a, fx.Proxy):
        return False
    waiting, known = [a.node], "depends on the input"
    while waiting:
        node = waiting[-1]
        if known in node.meta:
            waiting.pop()
            continue
        before = node.all_input_nodes
        unknown = [n for n in before if known not in n.meta]
        if not unknown:
            node.meta[known] = node.op == "placeholder" or any(n.meta[known] for n in before)
        waiting += unknown
    return bool(a.node.meta[known])
