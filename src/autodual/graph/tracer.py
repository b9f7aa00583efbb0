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
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.fx.proxy import TraceError

from autodual._errors import CaptureError
from autodual.graph.registry import Registry
from autodual.graph.twins import Twins

FACTS = {"size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "is_floating_point", "get_device"}
"""Methods that say something about a tensor without reading its values: answered from the sample, never recorded."""


class ConcreteProxy(fx.Proxy):
    """A proxy that answers questions about shape, dtype and device from the sample's value."""

    value: Any
    overwritten: str = ""
    """Why it must not be read any more: its tensor was changed through a view, where the graph does not show it."""

    def __getattr__(self, name: str) -> Any:
        """A tensor such as x.T is recorded; x.shape is a plain fact; methods are left to torch.fx."""
        if name == "value":  # not known yet
            raise AttributeError(name)
        found = getattr(self.value, name)
        if isinstance(found, Tensor):
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return super().__getattr__(name) if callable(found) else found

    def __len__(self) -> int:
        return len(self.value)

    def __iadd__(self, other: Any) -> Any:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> Any:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: Any) -> Any:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> Any:
        return self._in_place(operator.itruediv, other)

    def _in_place(self, function: Callable[..., Any], other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})


class _Reads(dict[str, Any]):
    """A module's parameters or buffers, as the tracer wants them to be read."""

    def __init__(self, tensors: dict[str, Any], read: Callable[[Any], Any]) -> None:
        super().__init__(tensors)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        return self._read(super().__getitem__(name))

    def get(self, name: str, default: Any = None) -> Any:
        return self._read(super().get(name, default))

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


class ConcreteTracer(fx.Tracer):
    """Records a graph of registered operations, expanding rewrites as they are met."""

    def __init__(self, registry: Registry, sample: Tensor) -> None:
        super().__init__(autowrap_modules=(), param_shapes_constant=False)  # type: ignore[arg-type]
        self.registry = registry
        self.sample = sample
        self.constants: dict[str, Tensor] = {}
        self._copies: dict[str, Tensor] = {}
        """What the sample meets in place of the constants, so that a write cannot reach the user's tensors."""
        self.values: dict[fx.Node, Any] = {}
        self.paths: dict[fx.Node, str] = {}
        self._stack: list[str] = []
        self._failure: tuple[Exception | None, str] = (None, "")
        self._proxies: list[ConcreteProxy] = []
        self._read: dict[str, ConcreteProxy] = {}
        """Parameters and buffers that have been read, by name."""
        self._buffers: dict[int, Tensor] = {}
        """What the sample meets in place of the buffers, by their identity, during one operation."""
        self._running = False
        """True while the sample passes through an operation: nothing is recorded then."""

    def record(self, root: nn.Module) -> fx.Graph:
        """The graph of `root`, whose forward takes one argument. Nothing of `root` is changed."""
        self.root = root
        self.graph = fx.Graph()
        self._names = {id(t): name for name, t in (*root.named_parameters(), *root.named_buffers())}
        self._twins = Twins(root)
        for i, twin in self._twins.of.items():
            self._intercept(self._twins.originals[i], twin)
        self._original_of = {id(twin): self._twins.originals[i] for i, twin in self._twins.of.items()}
        self._path_of = {id(module): path for path, module in root.named_modules()}
        try:
            x = self.create_proxy("placeholder", "x", (), {})
            result = self._twins.of[id(root)].forward(x)
            self.create_node("output", "output", (self.create_arg(result),), {})
        finally:
            self._twins.dissolve()
            self._proxies.clear()
            self._read.clear()
        return self.graph

    def _intercept(self, original: nn.Module, twin: nn.Module) -> None:
        """Have calls of the twin, and reads of its parameters and buffers, lead here.

        PyTorch looks for `_compiled_call_impl` on the object before it calls forward, and `nn.Module.__getattr__` looks into
        `_parameters` and `_buffers`: so the twin's class stays what it is.
        """
        state = vars(twin)
        state["_compiled_call_impl"] = functools.partial(self._call, twin)
        state["_parameters"] = _Reads(original._parameters, self._read_parameter)
        state["_buffers"] = _Reads(original._buffers, self._read_buffer)
        state["_backward_hooks"], state["_backward_pre_hooks"] = {}, {}  # they see gradients, of which there are none

    @property
    def where(self) -> str:
        """Path of the module that is being traced; empty for the model itself."""
        return strip(self._stack[-1]) if self._stack else ""

    def place_of(self, error: Exception) -> str:
        """Path of the innermost module that raised it."""
        return (self._failure[1] if self._failure[0] is error else self.where) or "model"

    def proxy(self, node: fx.Node) -> ConcreteProxy:
        return ConcreteProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, ConcreteProxy):
            if a.overwritten:
                raise CaptureError(a.overwritten)
            return a.node
        if isinstance(a, Tensor):
            if id(a) in self._names:
                return self._attribute(a).node
            name = self._constant(a)
            node = self.create_node("get_attr", name, (), {})
            self.values[node] = self._copies[name]
            return node
        # A named tuple, which torch.fx would record as a call of its class.
        if isinstance(a, tuple) and hasattr(a, "_fields"):
            return tuple(self.create_arg(part) for part in a)
        return super().create_arg(a)

    def _constant(self, a: Tensor) -> str:
        """Name of a tensor that is no attribute: kept by reference, so that it stays live."""
        known = next((n for n, t in self.constants.items() if t is a), None)
        if known is not None:
            return known
        if a.grad_fn is not None:
            raise CaptureError(
                f"{self.where or 'model'}: uses a tensor that was computed from parameters out of sight of the capture, so it "
                f"would not follow them; read parameters as attributes (self.weight), inside forward"
            )
        name = f"_tensor_{len(self.constants)}"
        self.constants[name], self._copies[name] = a, a.detach().clone()
        return name

    def _call(self, twin: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What a call of a module means while it is traced: one node, a rewrite, or what its forward and its hooks do."""
        if self._running:
            return twin._call_impl(*args, **kwargs)
        original = self._original_of[id(twin)]
        path = self._path_of[id(original)]
        self._stack.append(path)
        try:
            rewrite = self.registry.rewrite_of(original)
            rewritten = NotImplemented if rewrite is None else rewrite(twin, *args, **kwargs)
            if rewritten is not NotImplemented:
                return rewritten
            if self.registry.builder_of(original) is not None:
                return self.create_proxy("call_module", path, args, kwargs)
            return _forward_with_hooks(twin, args, kwargs)
        except Exception as error:
            if self._failure[0] is not error:
                self._failure = error, self.where
            raise
        finally:
            self._stack.pop()

    def _read_parameter(self, value: Any) -> Any:
        return self._attribute(value) if isinstance(value, Tensor) and not self._running else value

    def _read_buffer(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not self._running:
            return self._read_parameter(value)
        return self._buffers.setdefault(id(value), value.clone())

    def _attribute(self, a: Tensor) -> Any:
        """The proxy of one of the model's parameters or buffers; any other tensor as it is."""
        name = self._names.get(id(a))
        if name is None:
            return a
        if name not in self._read:
            self._read[name] = self.create_proxy("get_attr", name, (), {})
        return self._read[name]

    def _check_followed(self) -> None:
        """Refuse an operation inside a module that is not a twin: where that was found, the capture does not look."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code is not _RECORD:
            if frame.f_code is _CALL:
                module = frame.f_locals["self"]
                path = self._path_of.get(id(module))
                if path is not None:
                    raise CaptureError(
                        f"{self.where or 'model'}: calls its part {strip(path) or 'model'} by a way that the capture cannot follow (a "
                        f"class attribute, a cache, an object of another library); read it as an attribute of the model (self.name)"
                    )
                if id(module) not in self._original_of:
                    raise CaptureError(
                        f"{self.where or 'model'}: calls a {type(module).__name__} that is not one of its submodules; assign it to an "
                        f"attribute in __init__ (or use nn.ModuleList) so that its parameters belong to the model"
                    )
            frame = frame.f_back

    def create_proxy(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *rest: Any, **named: Any
    ) -> Any:
        if kind in ("call_function", "call_method") and _name(target) in FACTS:
            return getattr(Tensor, _name(target))(*self._concrete(args), **self._concrete(kwargs))
        if kind in ("call_function", "call_method"):
            function = target if kind == "call_function" else getattr(torch.Tensor, target, None)
            rewrite = None if function is None else self.registry.rewrite_of(function)
            rewritten = NotImplemented if rewrite is None else rewrite(*args, **kwargs)
            if rewritten is not NotImplemented:
                return rewritten
        self._check_followed()
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **named)
        assert isinstance(proxy, ConcreteProxy)
        before = [(p, p.value._version) for p in self._proxies if isinstance(p.value, Tensor)]
        constants = {name: copy._version for name, copy in self._copies.items()}
        self._running = True
        try:
            proxy.value = self.values[proxy.node] = self._run(kind, target, args, kwargs)
        finally:
            self._running = False
        self.paths[proxy.node] = self.where
        if any(self._copies[name]._version != version for name, version in constants.items()):
            raise CaptureError(
                f"{self.where or 'model'}: writes into a tensor that it made itself ({_name(target)}); use the "
                f"out-of-place form, torch.cat or torch.stack instead, so that the graph shows the dependency"
            )
        self._follow_writes(proxy, before)
        self._proxies.append(proxy)
        return proxy

    @torch.no_grad()
    def _run(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self._concrete(args), self._concrete(kwargs)
        if kind == "placeholder":
            return self.sample
        if kind == "get_attr":
            return operator.attrgetter(target)(self.root).detach().clone()
        if kind == "call_module":
            self._buffers.clear()
            return self._twins.of[id(self.root.get_submodule(target))]._call_impl(*args, **kwargs)
        if kind == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _follow_writes(self, proxy: ConcreteProxy, before: list[tuple[ConcreteProxy, int]]) -> None:
        """An in-place operation changes what every name of its tensor means: those names now stand for the result.

        What shares only memory with it (a view, or what it is a view of) has changed too, and may not be read again.
        """
        for other, version in before:
            if other.value._version == version:
                continue
            if other.value is proxy.value:
                other.node = proxy.node
            else:
                other.overwritten = (
                    f"{self.where or 'model'}: writes in place through a view ({_name(proxy.node.target)}), and the tensor behind "
                    f"it is read again; use the out-of-place form so that the graph shows the dependency"
                )

    def to_bool(self, obj: Any) -> bool:
        raise TraceError("a branch depends on the values in a tensor")

    def iter(self, obj: Any) -> Any:
        if isinstance(obj.value, tuple | list):
            return (obj[i] for i in range(len(obj.value)))
        raise TraceError("a loop runs over the values in a tensor")

    def _concrete(self, arguments: Any) -> Any:
        def concrete(a: Any) -> Any:
            if isinstance(a, ConcreteProxy):
                return a.value
            if isinstance(a, Tensor):
                return self._attribute(a).value if id(a) in self._names else self._copies[self._constant(a)]
            return a

        return map_aggregate(arguments, concrete)


def _forward_with_hooks(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A module's forward between its hooks, as nn.Module calls them."""
    for key, hook in list(module._forward_pre_hooks.items()):
        if key in module._forward_pre_hooks_with_kwargs:
            changed = hook(module, args, kwargs)
            args, kwargs = (args, kwargs) if changed is None else changed
        else:
            changed = hook(module, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
    result = module.forward(*args, **kwargs)
    for key, hook in list(module._forward_hooks.items()):
        with_kwargs = key in module._forward_hooks_with_kwargs
        changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
        result = result if changed is None else changed
    return result


_RECORD, _CALL = ConcreteTracer.record.__code__, nn.Module._call_impl.__code__


def strip(path: str) -> str:
    """A module path without the root that capture puts above the user's model."""
    return "" if path == "model" else path.removeprefix("model.")


def _name(target: Any) -> str:
    return strip(target) if isinstance(target, str) else str(getattr(target, "__name__", target))
