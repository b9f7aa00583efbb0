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
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.fx.proxy import TraceError

from autodual._errors import AutodualError, CaptureError
from autodual.graph.calls import Calls, Step, shaped_by_values, tensors, unchanged, written_to
from autodual.graph.guards import hooks_on_all_modules, odd_tensor
from autodual.graph.plain import (
    CIRCUMSTANCES,
    FACTS,
    GENERATORS,
    OUT_OF_SIGHT,
    TELLS_BATCH,
    Plain,
    outside_inference_mode,
)
from autodual.graph.proxies import ConcreteProxy, Reads, value_of
from autodual.graph.registry import Registry, hooked_parameters
from autodual.graph.twins import State, Twins, own_classes


class ConcreteTracer(fx.Tracer):
    """Records a graph of registered operations, expanding rewrites as they are met."""

    def __init__(self, registry: Registry, root: nn.Module) -> None:
        """root: its forward takes one argument. Nothing of it is changed."""
        super().__init__(autowrap_modules=(), param_shapes_constant=False)  # type: ignore[arg-type]
        self.registry = registry
        self.root = root
        self.told = False
        """Whether forward has asked for anything that tells the size of the batch."""
        self.asked = False
        """Whether forward has asked for the layout of a tensor, or whether it requires gradients."""
        self.running = False
        """True while the sample passes through an operation: nothing is recorded then."""
        self._stack: list[str] = []
        self._expanding = 0
        """How many calls deep a rewrite is being recorded."""
        self._plain: Plain | None = None
        """Where a run on tensors, without proxies, is kept."""
        self._failure: tuple[Exception | None, str] = (None, "")
        self._refusal: Exception | None = None
        """The first refusal. A model that catches it is refused all the same."""
        self._buffers: dict[int, Tensor] = {}
        """What the sample meets in place of the buffers, by their identity, during one operation."""
        self._names: dict[int, str] = {}
        self._path_of: dict[int, str] = {}
        for path, module in root.named_modules():
            self._path_of[id(module)] = path
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None:
                    self._names.setdefault(id(tensor), f"{path}.{name}")
        self._twins = Twins(root)
        for i, twin in self._twins.of.items():
            self._intercept(self._twins.originals[i], twin)
        self._original_of = {id(twin): self._twins.originals[i] for i, twin in self._twins.of.items()}
        self._twin_at = {path: self._twins.of[i] for i, path in self._path_of.items()}
        self._ways: dict[int, tuple[Any, bool]] = {}
        """By the identity of a module: how it is rewritten, and whether it is one call."""
        self._states: dict[int, State] = {}
        """By the identity of a module that is one call, or rewritten: its twin as it was before the first run."""
        for i, module in self._twins.originals.items():
            rewrite, is_one_call = registry.rewrite_of(module), registry.builder_of(module) is not None
            self._ways[i] = rewrite, is_one_call
            if rewrite is not None or is_one_call:
                self._states[i] = State(self._twins.of[i], hooked_parameters(module))
        self._rewritten: dict[int, bool] = {}
        """By the identity of a module: whether its last call was."""

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
        x = self.create_proxy("placeholder", "x", (), {})
        result = self._twins.of[id(self.root)].forward(x)
        if self._refusal is not None:
            raise self._refusal
        self.calls.output = map_aggregate(result, value_of)
        self.create_node("output", "output", (self.create_arg(result),), {})
        for name, tensor in self.constants.items():
            if not unchanged(tensor, self._copies[name]):
                raise CaptureError(
                    "model: writes into a tensor that it made itself, or that it keeps, after it has computed with it; compute a new "
                    "tensor instead, so that the graph shows which of the two is meant"
                )
        return self.graph

    def generators(self) -> list[Any]:
        """Objects that random numbers come from, as far as the model holds them."""
        return self._twins.holding(GENERATORS)

    def run_plainly(self, sample: Tensor) -> Calls:
        """The calls that `forward` makes with a sample itself, instead of a proxy, after whatever earlier runs have stored."""
        self.sample, self._plain = sample, Plain(sample, self._names, lambda: self.where)
        try:
            with self._plain as plain:
                plain.calls.output = self._twins.of[id(self.root)].forward(sample)
            self.asked |= plain.asked
            self.told |= plain.told
            refusal = plain.refusal or self._refusal
            if refusal is not None:
                raise refusal
            return plain.calls
        finally:
            self._plain = None

    def dissolve(self) -> None:
        """Forget the twins, so that no cycle of references keeps anything in memory."""
        self._twins.dissolve()
        self._states.clear()
        self._failure = None, ""  # its traceback knows this tracer
        self._proxies.clear()
        self._read.clear()

    def _intercept(self, original: nn.Module, twin: nn.Module) -> None:
        """Have calls of the twin, and reads of its parameters and buffers, lead here.

        PyTorch looks for `_compiled_call_impl` on the object before it calls forward, and `nn.Module.__getattr__` looks into
        `_parameters` and `_buffers`: so the twin's class stays what it is.
        """
        state = vars(twin)
        state["_compiled_call_impl"] = functools.partial(self._call, twin)
        state["_parameters"] = Reads(original._parameters, self._read_parameter)
        state["_buffers"] = Reads(original._buffers, self._read_buffer)
        state["_backward_hooks"], state["_backward_pre_hooks"] = {}, {}  # they see gradients, of which there are none

    @property
    def where(self) -> str:
        """Path of the module that is being traced; empty for the model itself."""
        return strip(self._stack[-1]) if self._stack else ""

    def refused(self, why: str) -> CaptureError:
        """The error to raise. The model may catch it, and go on otherwise than with tensors: the capture does not forget."""
        error = CaptureError(why)
        self._refusal = self._refusal or error
        return error

    def place_of(self, error: Exception) -> str:
        """Path of the innermost module that raised it."""
        return (self._failure[1] if self._failure[0] is error else self.where) or "model"

    def proxy(self, node: fx.Node) -> ConcreteProxy:
        return ConcreteProxy(node, self)

    def create_arg(self, a: Any) -> Any:
        kind = type(a)
        if a is None or kind is int or kind is float or kind is bool or kind is str:
            return a
        if kind is tuple:
            return tuple(self.create_arg(part) for part in a)
        if kind is dict and not a:
            return a
        if isinstance(a, ConcreteProxy):
            if a.overwritten:
                raise self.refused(a.overwritten)
            if a.node not in self.values:
                raise self.refused(
                    f"{self.where or 'model'}: uses a value that an earlier capture has left behind in an object or a global "
                    f"variable; a model that reads what an earlier run has stored there is no function of its input"
                )
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
        odd = odd_tensor(a, f"{self.where or 'model'}: a tensor that it computes with")
        if odd is not None:
            raise self.refused(odd)
        if a.grad_fn is not None and self._plain is None:
            raise self.refused(
                f"{self.where or 'model'}: uses a tensor that was computed from parameters out of sight of the capture, so it "
                f"would not follow them; read parameters as attributes (self.weight), inside forward"
            )
        name = f"_tensor_{len(self.constants)}"
        with outside_inference_mode():
            self.constants[name], self._copies[name] = a, a.detach().clone()
        return name

    def _call(self, twin: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """What a call of a module means while it is traced: one node, a rewrite, or what its forward and its hooks do."""
        if self.running:
            return twin._call_impl(*args, **kwargs)
        original = self._original_of[id(twin)]
        path = self._path_of[id(original)]
        self._stack.append(path)
        try:
            if self._plain is not None:
                return self._call_plainly(self._plain, path, original, twin, args, kwargs)
            self._check_state(original)
            rewrite, is_one_call = self._ways[id(original)]
            rewritten = NotImplemented if rewrite is None else self._expanded((path,), rewrite, (twin,), args, kwargs)
            self._rewritten[id(original)] = rewritten is not NotImplemented
            if rewritten is not NotImplemented:
                return rewritten
            if is_one_call:
                made = self.create_proxy("call_module", path, args, kwargs)
                self._keep_state(original)
                return made
            return _forward_with_hooks(twin, args, kwargs)
        except Exception as error:
            if self._failure[0] is not error:
                self._failure = error, self.where
            raise
        finally:
            self._stack.pop()

    def _check_state(self, original: nn.Module) -> None:
        """Refuse to call a module that `forward` has changed, where its dual layer is built from the module as it is otherwise."""
        state = self._states.get(id(original))
        name = None if state is None else state.changed()
        if state is not None and name is None and hooks_on_all_modules():
            name = "hooks, those on every module,"
        if name is not None:
            raise self.refused(
                f"{self.where or 'model'}: its attribute {name} is changed by a forward that then calls it, and it is bounded as it "
                f"is outside of forward. Set attributes and hooks of modules before you certify, or give each setting a module of "
                f"its own"
            )

    def _keep_state(self, original: nn.Module) -> None:
        """After its call. Own code may store something, for which its dual layer answers; in training, statistics move."""
        if (original.training or own_classes(original)) and self._states[id(original)].changed() is not None:
            self._states[id(original)].keep()

    def _call_plainly(
        self, plain: Plain, path: str, original: nn.Module, twin: nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """A module's call with tensors; what the graph has as one call is one call here, too."""
        if not (self._rewritten.get(id(original)) or self._ways[id(original)][1]):
            return _forward_with_hooks(twin, args, kwargs)
        self._check_state(original)
        self.running = True
        try:
            made = plain.call(path, twin._call_impl, args, kwargs)
        finally:
            self.running = False
        self._keep_state(original)
        return made

    def _expanded(
        self, target: Any, rewrite: Callable[..., Any], first: tuple[Any, ...], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """What a rewrite makes of a call."""
        step = None
        if not self._expanding:  # only what the user wrote is noted, and not what a rewrite makes of it
            named, given = (args[1], args[:1]) if target is getattr else (target, args)  # x.mT is noted by its name
            step = self.calls.begin(named, self._concrete(given), self._concrete(kwargs) if kwargs else {}, self.where)
        self._expanding += 1
        try:
            made = rewrite(*first, *args, **kwargs)
        except AutodualError as error:
            self._refusal = self._refusal or error
            raise
        finally:
            self._expanding -= 1
        if made is not NotImplemented and step is not None:
            self.calls.finish(step, map_aggregate(made, value_of), [])
        return made

    def _read_parameter(self, value: Any) -> Any:
        if self._plain is not None and isinstance(value, Tensor) and not self.running:
            return self._plain.own(value)
        return self._attribute(value) if isinstance(value, Tensor) and not self.running else value

    def _read_buffer(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not (self.running or self._plain is not None):
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

    def _check_followed(self) -> None:
        """Refuse an operation inside a module that is not a twin: where that was found, the capture does not look."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code is not _RECORD:
            if frame.f_code is _CALL:
                module = frame.f_locals["self"]
                path = self._path_of.get(id(module))
                if path is not None:
                    raise self.refused(
                        f"{self.where or 'model'}: calls its part {strip(path) or 'model'} by a way that the capture cannot follow (a "
                        f"class attribute, a cache, an object of another library); read it as an attribute of the model (self.name)"
                    )
                if id(module) not in self._original_of:
                    raise self.refused(
                        f"{self.where or 'model'}: calls a {type(module).__name__} that is not one of its submodules; assign it to an "
                        f"attribute in __init__ (or use nn.ModuleList) so that its parameters belong to the model"
                    )
            frame = frame.f_back

    def create_proxy(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *rest: Any, **named: Any
    ) -> Any:
        if self._plain is not None:  # of something that the first run has stored
            with self._plain.one_call(), outside_inference_mode():
                return self._plain.unknown(self._run(kind, target, *map_aggregate((args, kwargs), value_of)))
        if kind in ("call_function", "call_method"):
            self.told |= _name(target) in TELLS_BATCH
        if kind in ("call_function", "call_method") and _name(target) in FACTS:
            self.asked |= _name(target) in CIRCUMSTANCES
            return getattr(Tensor, _name(target))(*self._concrete(args), **self._concrete(kwargs))
        if kind == "call_method" and target in OUT_OF_SIGHT:
            raise self.refused(
                f"{self.where or 'model'}: {target}() lets values leave the graph, or be written out of its sight; use operations on "
                f"tensors instead"
            )
        if kind in ("call_function", "call_method"):
            function = target if kind == "call_function" else getattr(torch.Tensor, target, None)
            rewrite = None if function is None else self.registry.rewrite_of(function)
            rewritten = NotImplemented if rewrite is None else self._expanded(function, rewrite, (), args, kwargs)
            if rewritten is not NotImplemented:
                return rewritten
        self._check_followed()
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **named)
        assert isinstance(proxy, ConcreteProxy)
        args, kwargs = self._concrete(args), self._concrete(kwargs) if kwargs else {}
        step = self._noted(kind, target, args, kwargs)
        self._check_shape(step, target)
        given = [(t, t._version) for t in tensors(args) + tensors(kwargs)]
        self.running = True
        try:
            with self._mode():
                proxy.value = self.values[proxy.node] = self._run(kind, target, args, kwargs)
        except Exception:
            self.graph.erase_node(proxy.node)  # the model may catch it, and the call has made nothing
            self.told = True  # for another number of examples, it may not fail
            raise
        finally:
            self.running = False
        self._check_shape(step, target, proxy.value)
        self.paths[proxy.node] = self.where
        written = written_to(_name(target), given, args[0] if args else None)
        if written:
            self._follow_writes(proxy, written)
        self._proxies.append(proxy)
        if kind == "placeholder" or kind == "get_attr":
            self.calls.name(proxy.value, target)
        elif step is not None:
            self.calls.finish(step, proxy.value, written)
        return proxy

    def _check_shape(self, step: Step | None, target: Any, made: Any = None) -> None:
        if shaped_by_values(step, made):
            raise self.refused(
                f"{self.where or 'model'}: the shape of what {_name(target)} makes depends on the input's values, so that the model "
                f"could branch on them; use operations whose result always has one shape"
            )

    def _noted(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | None:
        """The call, as a run on tensors would show it."""
        if self._expanding or not kind.startswith("call"):
            return None
        if target is getattr or target is operator.getitem:
            if not isinstance(args[0], Tensor):  # picked from a tuple, in Python, and not by a call of torch
                return None
            if target is getattr:
                return self.calls.begin(args[1], args[:1], {}, self.where)
        return self.calls.begin((target,) if kind == "call_module" else target, args, kwargs, self.where)

    def _mode(self) -> AbstractContextManager[Any]:
        """In which the operations of a run are computed."""
        if torch.is_inference_mode_enabled():
            return outside_inference_mode()
        return torch.no_grad() if torch.is_grad_enabled() else nullcontext()

    def _run(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kind == "placeholder":
            return self.sample
        if kind == "get_attr":
            return operator.attrgetter(target)(self.root).detach().clone()
        if kind == "call_module":
            self._buffers.clear()
            return self._twin_at[target]._call_impl(*args, **kwargs)
        if kind == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _follow_writes(self, proxy: ConcreteProxy, written: list[Tensor]) -> None:
        """An in-place operation changes what every name of its tensor means: those names now stand for the result.

        What shares only memory with it (a view, what it is a view of, its .data) has changed too, and may not be read again.
        """
        name = _name(proxy.node.target)
        if any(tensor is copy for tensor in written for copy in self._copies.values()):
            raise self.refused(
                f"{self.where or 'model'}: writes into a tensor that it made itself ({name}); use the "
                f"out-of-place form, torch.cat or torch.stack instead, so that the graph shows the dependency"
            )
        memory = {_memory(tensor) for tensor in written}
        self.written.update({n: proxy.node for n, p in self._read.items() if _memory(p.value) in memory})
        for other in self._proxies:
            if not isinstance(other.value, Tensor) or _memory(other.value) not in memory:
                continue
            if other.value is proxy.value:
                other.node = proxy.node
            else:
                other.overwritten = (
                    f"{self.where or 'model'}: writes in place through a view or .data ({name}), and the tensor "
                    f"behind it is read again; use the out-of-place form so that the graph shows the dependency"
                )

    def to_bool(self, obj: Any) -> bool:
        raise self._depends_on_values("a branch depends on the values in a tensor")

    def iter(self, obj: Any) -> Any:
        if isinstance(obj.value, tuple | list):
            self.told = True
            return (obj[i] for i in range(len(obj.value)))
        raise self._depends_on_values("a loop runs over the values in a tensor")

    def _depends_on_values(self, how: str) -> TraceError:
        error = TraceError(how)
        if self._refusal is None:
            self._refusal = error
            self._failure = error, self.where
        return error

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


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _name(target: Any) -> str:
    return strip(target) if isinstance(target, str) else str(getattr(target, "__name__", target))
