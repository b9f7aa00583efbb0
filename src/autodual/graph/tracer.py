"""A torch.fx tracer whose proxies know the value they stand for.

Plain symbolic tracing stops at `if x.shape[1] != 3` and at `b, c, h, w = x.shape`. Here every operation is also run on a
small sample, so shapes are plain integers while the graph is recorded; only a branch on *values* is refused.
docs/capture.md compares this with torch.export.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.fx.proxy import TraceError

from autodual._errors import CaptureError
from autodual.graph.registry import Registry


class ConcreteProxy(fx.Proxy):
    """A proxy that answers questions about shape, dtype and device from the sample's value."""

    value: Any

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return int(self.value.ndim)

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    @property
    def device(self) -> torch.device:
        return self.value.device

    @property
    def is_cuda(self) -> bool:
        return bool(self.value.is_cuda)

    @property
    def requires_grad(self) -> bool:
        return bool(self.value.requires_grad)

    def size(self, dim: int | None = None) -> Any:
        return self.value.shape if dim is None else self.value.shape[dim]

    def dim(self) -> int:
        return int(self.value.dim())

    def numel(self) -> int:
        return int(self.value.numel())

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


class ConcreteTracer(fx.Tracer):
    """Records a graph of registered operations, expanding rewrites as they are met."""

    def __init__(self, registry: Registry, sample: Tensor) -> None:
        super().__init__(param_shapes_constant=False)
        self.proxy_buffer_attributes = True
        self.registry = registry
        self.sample = sample
        self.constants: dict[str, Tensor] = {}
        self.values: dict[fx.Node, Any] = {}
        self.paths: dict[fx.Node, str] = {}
        self._stack: list[str] = []
        self._proxies: list[ConcreteProxy] = []
        self._running = False
        """True while the sample passes through an operation: nothing is recorded then."""

    @property
    def where(self) -> str:
        """Path of the module that is being traced."""
        return self._stack[-1] if self._stack else ""

    def proxy(self, node: fx.Node) -> ConcreteProxy:
        return ConcreteProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor):  # keep it by reference: live, and nothing is written to the user's model
            name = next((n for n, t in self.constants.items() if t is a), f"_tensor_{len(self.constants)}")
            self.constants[name] = a
            node = self.create_node("get_attr", name, (), {})
            self.values[node] = a.detach().clone()
            return node
        return super().create_arg(a)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._running:
            return forward(*args, **kwargs)
        try:
            path = self.path_of_module(m)
        except NameError:
            raise CaptureError(
                f"{self.where or 'model'}: calls a {type(m).__name__} that is not one of its submodules; assign it to an "
                f"attribute in __init__ (or use nn.ModuleList) so that its parameters belong to the model"
            ) from None
        self._stack.append(path)
        try:
            rewrite = self.registry.rewrite_of(m)
            rewritten = NotImplemented if rewrite is None else rewrite(m, *args, **kwargs)
            if rewritten is not NotImplemented:
                return rewritten
            if self.registry.builder_of(m) is not None:
                return self.create_proxy("call_module", path, args, kwargs)
            return forward(*args, **kwargs)
        finally:
            self._stack.pop()

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._running else super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_proxy(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *rest: Any, **named: Any
    ) -> Any:
        if kind in ("call_function", "call_method"):
            function = target if kind == "call_function" else getattr(torch.Tensor, target, None)
            rewrite = None if function is None else self.registry.rewrite_of(function)
            rewritten = NotImplemented if rewrite is None else rewrite(*args, **kwargs)
            if rewritten is not NotImplemented:
                return rewritten
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **named)
        assert isinstance(proxy, ConcreteProxy)
        before = [(p, p.value._version) for p in self._proxies if isinstance(p.value, Tensor)]
        self._running = True
        try:
            proxy.value = self.values[proxy.node] = self._run(kind, target, args, kwargs)
        finally:
            self._running = False
        self.paths[proxy.node] = self.where
        self._follow_writes(proxy, before)
        self._proxies.append(proxy)
        return proxy

    def _run(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = _concrete(args), _concrete(kwargs)
        if kind == "placeholder":
            return self.sample
        if kind == "get_attr":
            return operator.attrgetter(target)(self.root).detach().clone()
        if kind == "call_module":
            module = self.root.get_submodule(target)
            buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
            return torch.func.functional_call(module, buffers, args, kwargs)
        if kind == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _follow_writes(self, proxy: ConcreteProxy, before: list[tuple[ConcreteProxy, int]]) -> None:
        """An in-place operation changes what every name of its tensor means: those names now stand for the result."""
        for other, version in before:
            if other.value._version == version:
                continue
            if other.value is not proxy.value:
                raise CaptureError(
                    f"{self.where or 'model'}: writes in place through a view ({proxy.node.target}); "
                    f"use the out-of-place form so that the graph shows the dependency"
                )
            other.node = proxy.node

    def to_bool(self, obj: Any) -> bool:
        raise TraceError("a branch depends on the values in a tensor")

    def iter(self, obj: Any) -> Any:
        if isinstance(obj.value, tuple | list):
            return (obj[i] for i in range(len(obj.value)))
        raise TraceError("a loop runs over the values in a tensor")


def _concrete(arguments: Any) -> Any:
    return map_aggregate(arguments, lambda a: a.value if isinstance(a, ConcreteProxy) else a)
