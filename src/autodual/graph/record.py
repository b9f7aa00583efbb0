"""MODEL -> GRAPH: record what a module computes for inputs of one shape, and make sure that it is one function.

A capture runs `forward` once on proxies to record it, and again on tensors, under other circumstances: with other numbers of
examples, without gradients, in inference mode, after whatever the first run has stored in the model. All runs must have made their
outputs by the same calls: of the same functions, with the same numbers, from the same parameters and constants. So none of these
becomes a constant of the graph: the size of the batch, a counter, a clock, random numbers, the gradient mode, the type of x.
Comparing outputs would not be enough: a clamp may be inactive at one point, an activation saturated.
"""

from __future__ import annotations

import ctypes
import operator
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.proxy import TraceError
from torch.nn.modules import module as module_hooks
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from autodual._errors import ArgumentError, AutodualError, CaptureError
from autodual._tensor import Shape
from autodual.graph.calls import TAKES_SHAPE, Calls, Constant, Step, Value, Watch, equal, names
from autodual.graph.network import Network, check_unchanged, network_of, same
from autodual.graph.registry import Registry, odd_tensor
from autodual.graph.tracer import ConcreteTracer

CAPTURE_BATCH, OTHER_BATCH = 13, 2
"""Sizes of the batches that are run. A size that is the same in both runs is not the batch."""


def no_module(given: object) -> str:
    """The type of what was given in the place of a module, and what to give instead."""
    advice = ""
    if isinstance(given, Mapping):
        advice = "; make the network, and load these weights with its load_state_dict"
    elif isinstance(given, str | Path):
        advice = (
            "; make the network, and load the file's weights with its load_state_dict (load_onnx opens an ONNX file)"
        )
    elif callable(given):
        advice = "; make it the forward of a module, so that its parameters are known"
    return f"{type(given).__name__}{advice}"


def capture_graph(model: nn.Module, example: Tensor, registry: Registry, may_draw: bool = False) -> Network:
    """The graph of `model` for inputs shaped like `example` [N, *shape]; only the first example's values are used.

    may_draw: whether parameters may be computed with random numbers, as in a step of training, which certifies nothing.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {no_module(model)}")
    check_model(model, example)
    check_surroundings(model)

    def sample(batch: int) -> Tensor:
        return example.detach()[:1].expand(batch, *example.shape[1:]).clone()

    with torch.inference_mode(False):
        tracer = ConcreteTracer(registry, model)
        generators = tracer.twins.holding(GENERATORS)
        drawn = random_state(example.device, generators)
        try:
            # With gradients, a tensor that was computed from parameters can be told from a constant.
            with torch.enable_grad(), _explained(tracer, example):
                graph = tracer.record(sample(CAPTURE_BATCH))
            network = network_of(model, tracer, graph)

            def compare(batch: int, circumstances: AbstractContextManager[None]) -> None:
                again = sample(batch)  # outside of inference mode, where writes count
                with torch.inference_mode(), circumstances, _explained(tracer, example):
                    check_same(tracer.calls, tracer.run_plainly(again))

            compare(OTHER_BATCH, nullcontext())
            given = len(example)
            known = given in (CAPTURE_BATCH, OTHER_BATCH) or (given == 1 and model.training)
            if tracer.watch.batch_seen and not known:
                compare(given, nullcontext())
            if tracer.watch.batch_seen and not model.training:
                _compare_anew(tracer, ConcreteTracer(registry, model), sample(OTHER_BATCH), example)
                # What was stored under the size of a batch is read at its second time.
                compare(OTHER_BATCH, nullcontext())
                if given != 1:
                    _compare_alone(tracer, sample(1), example)
            if tracer.watch.layout_seen or not example.is_contiguous():
                _vary_circumstances(tracer, sample(OTHER_BATCH), example)
            if not may_draw and drawn != random_state(example.device, generators):  # by the model, or by another thread
                compare(OTHER_BATCH, no_random_numbers(tracer.watch, generators))
        finally:
            tracer.dissolve()
    return network


def check_current(network: Network, example: Tensor) -> None:
    """Refuse a captured network whose model is another graph by now. Parameters and buffers may have changed: they are live.

    The model is traced again and compared, call by call, with every number in it: global variables, closures and the state of
    objects steer `forward`, too, and nothing short of running it tells whether they have changed.
    """
    check_unchanged(network, capture_graph(network.model, example, network.registry))


def _compare_anew(tracer: ConcreteTracer, fresh: ConcreteTracer, sample: Tensor, example: Tensor) -> None:
    """Refuse a model that stores what it made for the first batch that it saw, and computes with it ever after.

    All other runs read what the first one has stored. The model itself has stored something else: of a batch of another size.
    """
    try:
        with torch.enable_grad(), _explained(fresh, example):
            fresh.record(sample)
        check_same(tracer.calls, fresh.calls)
    finally:
        fresh.dissolve()


def _compare_alone(tracer: ConcreteTracer, sample: Tensor, example: Tensor) -> None:
    """Refuse a model that computes something else for one example alone: a certificate is about every example by itself.

    It may raise an error there, or drop the batch of one, as `squeeze` does: nobody takes that for scores of a batch.
    """
    with torch.inference_mode(), _explained(tracer, example):
        try:
            calls = tracer.run_plainly(sample)
        except (AutodualError, TraceError):
            raise
        except Exception:
            return
        if isinstance(calls.output, Tensor) and calls.output.shape[:1] == (1,):
            check_same(tracer.calls, calls)


def _vary_circumstances(tracer: ConcreteTracer, sample: Tensor, example: Tensor) -> None:
    """Refuse a model that computes something else for a tensor that lies otherwise in memory, or that requires gradients.

    It is asked of a model that wanted to know, or for inputs that lie otherwise. The model may raise an error there: then it is no
    function of such inputs, and not another one.
    """
    with torch.enable_grad(), _explained(tracer, example):
        for laid in _layouts(sample.requires_grad_()):
            try:
                calls = tracer.run_plainly(laid)
            except (AutodualError, TraceError):
                raise
            except Exception:
                continue
            check_same(tracer.calls, calls)


def _layouts(x: Tensor) -> Iterator[Tensor]:
    """Copies of a tensor that lie in memory as usual, with gaps between the examples, in reverse order, and with channels last.

    None of them is the tensor itself, so that each may be written to.
    """
    backwards = tuple(reversed(range(x.dim())))
    yield x * 1
    yield torch.stack([x, x], 1)[:, 1]
    yield (x * 1).permute(backwards).clone(memory_format=torch.contiguous_format).permute(backwards)
    inside = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if inside is not None:
        yield x.clone(memory_format=inside)


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
            f"{tracer.watch.place_of(error)}: control flow that depends on the input's values cannot be bounded as one "
            f"network ({error}). Replace it by operations on tensors (torch.maximum, clamp, a mask that is a constant), or "
            f"move it out of the module that you certify"
        ) from error
    except Exception as error:
        raise CaptureError(
            f"{tracer.watch.place_of(error)}: could not be captured for an input of shape {given}. The first dimension is the batch, "
            f"so one example has shape {given[1:]}; a batch of {len(tracer.sample)} of them gave {type(error).__name__}: {error}"
        ) from error


# Whether two runs have made the same calls.


def check_same(first: Calls, second: Calls) -> None:
    """Refuse a model whose second run, on tensors, has made its output otherwise than the first, on proxies."""
    how = _difference(first, second)
    if how is not None:
        raise CaptureError(
            f"{how[0] or 'model'}: computes something else when it runs again, on tensors instead of proxies and with a batch of "
            f"{second.batch} instead of {first.batch} ({how[1]}). It may depend on the batch size, on random numbers, on what an "
            f"earlier run has stored, on the time, on type(x) or isinstance(x, Tensor), on how x lies in memory, or on whether "
            f"gradients are wanted (torch.is_grad_enabled(), inference mode, x.requires_grad), or write into a tensor after it has "
            f"computed with it; certificates need one function per example. What is filled once may be filled in __init__"
        )


def _difference(first: Calls, second: Calls) -> tuple[str, str] | None:
    """Where and how the calls differ that the outputs were made by. What a model only stores does not count."""
    if second.written - first.written:
        return "", f"writes into {min(second.written - first.written)}"
    batches = first.batch, second.batch
    compared: set[tuple[int, int, int, int]] = set()
    waiting: list[tuple[Any, Any, tuple[Step, Step] | None]] = [
        (first.seen(first.output), second.seen(second.output), None)
    ]
    while waiting:
        one, other, users = waiting.pop()
        if not (isinstance(one, Value) and isinstance(other, Value)):  # another kind of output
            return _in_words(users)
        a, b = one.maker, other.maker
        if not (isinstance(a, Step) and isinstance(b, Step)):
            if not (isinstance(a, str) and a == b):
                return _in_words(users)
            continue
        if users is not None and users[0].varies and not _same_for_all(one, other, batches):
            return _in_words(users)
        pair = id(a), one.position, id(b), other.position
        if pair in compared:
            continue
        compared.add(pair)
        inputs: list[tuple[Value, Value]] = []
        given, again = (a.args, a.kwargs), (b.args, b.kwargs)
        alike = one.position == other.position and a.key == b.key
        if not alike or not _same_arguments(given, again, batches, inputs, takes_shape=a.key in TAKES_SHAPE):
            return _in_words((a, b))
        if one.varies and not _one_entry_each(one.shape, other.shape, batches, of_module=isinstance(a.key, tuple)):
            return b.path or a.path, f"{b!r} has shape {other.shape} instead of {one.shape}"
        waiting += [(x, y, (a, b)) for x, y in inputs]
    return None


def _one_entry_each(one: Shape, other: Shape, batches: tuple[int, int], of_module: bool) -> bool:
    """Whether both have one entry for each example of their batch, of the same shape; first, or second in what a module returns, as in
    the last states of recurrent layers."""
    return any(
        (one[d : d + 1] + other[d : d + 1], one[:d] + one[d + 1 :]) == (batches, other[:d] + other[d + 1 :])
        for d in range(2 if of_module else 1)
    )


def _in_words(users: tuple[Step, Step] | None) -> tuple[str, str]:
    """Where and how two calls differ, or what they use."""
    if users is None:
        return "", "another output"
    a, b = users
    return b.path or a.path, f"{b!r} instead of {a!r}" if repr(a) != repr(b) else f"{a!r} of something else"


def _same_for_all(one: Value, other: Value, batches: tuple[int, int]) -> bool:
    """Whether what was computed of parameters and constants is the same for all examples of both batches."""
    if one.tensor is None or other.tensor is None:
        return one.varies and other.varies
    return _same_tensor(one.tensor, other.tensor, batches, computed=True)


def _same_arguments(
    a: Any, b: Any, batches: tuple[int, int], inputs: list[tuple[Value, Value]], takes_shape: bool = False
) -> bool:
    """Whether arguments are equal. inputs: gets the values that calls have made among them, in pairs.

    takes_shape: whether the sizes of both batches stand for one another.
    """

    def known(a: Any, b: Any) -> bool | None:
        if isinstance(a, Value) and isinstance(b, Value):
            inputs.append((a, b))
            return True
        if isinstance(a, Constant) and isinstance(b, Constant):
            return b.stays and _same_tensor(a.tensor, b.tensor, batches, computed=False)
        return True if takes_shape and type(a) is type(b) is int and (a, b) == batches else None

    return same(a, b, known)


def _same_tensor(a: Tensor, b: Tensor, batches: tuple[int, int], computed: bool) -> bool:
    """Whether two constants are one: what either has for each example of its batch must be the same for all of them."""
    a, b = a.detach(), b.detach()
    if a.dtype != b.dtype or a.dim() != b.dim() or a.device != b.device:
        return False
    if a.shape == b.shape:
        return _close(a, b, computed) if a.is_cuda else equal(a, b)
    for dim, sizes in enumerate(zip(a.shape, b.shape, strict=True)):
        if sizes == batches:
            one, other = a.narrow(dim, 0, 1), b.narrow(dim, 0, 1)
            if not (equal(a, one.expand_as(a)) and equal(b, other.expand_as(b))):
                return False
            a, b = one, other
    return a.shape == b.shape and _close(a, b, computed)


def _close(a: Tensor, b: Tensor, computed: bool) -> bool:
    """Whether tensors are equal but for the order in which sums were computed, which may depend on shapes.

    Each entry by itself, since 13 is not 2, also beside 1e8. computed: whether calls of the run have made it, so that the terms of
    a sum may have cancelled: an entry is then less exact, in proportion to the largest, and still the same to three digits.
    """
    if not a.is_floating_point():
        return equal(a, b)
    apart, size, room = (a - b).abs(), b.abs(), 16 * torch.finfo(a.dtype).eps
    near = (apart <= room * size) | (a == b) | ((a != a) & (b != b))
    if computed and a.numel():
        near |= (apart <= room * size.nan_to_num(0, 0, 0).amax()) & (apart <= 2**-10 * size)
    return bool(near.all())


# Models that PyTorch has translated, and modules and tensors that are more than their classes: they run code that no graph shows.


def check_model(model: nn.Module, example: Tensor) -> None:
    """Refuse what torch.jit or torch.compile has made of a module, modules with a way of their own to be called, and odd tensors."""
    held: dict[str, Tensor | None] = {"x": example}
    for path, module in model.named_modules():
        where = path or "model"
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{where}: is a {type(module).__name__} of TorchScript, whose operations cannot be captured; pass the "
                f"module itself, as it was before torch.jit.script or torch.jit.trace"
            )
        if _is_compiled(module):
            raise CaptureError(
                f"{where}: is wrapped by torch.compile, which cannot be captured; pass the module itself, as it was before "
                f"(it shares its parameters with the compiled one)"
            )
        if module._compiled_call_impl is not None:
            raise CaptureError(
                f"{where}: its compile() was called, and a compiled module cannot be captured; pass "
                f"copy.deepcopy(model), which is not compiled"
            )
        if type(module)._call_impl is not nn.Module._call_impl or "_call_impl" in vars(module):
            raise CaptureError(
                f"{where}: its class {type(module).__name__} overrides _call_impl, which a capture does not run; put what it "
                f"does into forward, or into a hook"
            )
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            held[f"{path}.{name}" if path else name] = tensor
    for name, tensor in held.items():
        why = odd_tensor(tensor)
        if why is not None:
            raise CaptureError(f"{name}: {why}")


def _is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile made it. The compiler is not imported for that: where nobody has, there are no compiled modules."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(module, compiler.OptimizedModule)


# What lies outside a model and changes what it computes: refused, since no graph of the model would show it.

_GLOBAL_HOOKS = {
    "register_module_forward_pre_hook": module_hooks._global_forward_pre_hooks,
    "register_module_forward_hook": module_hooks._global_forward_hooks,
}
_FUNCTIONAL = [n for n, f in vars(F).items() if callable(f) and not n.startswith("__") and not isinstance(f, type)]
_BEHIND = {n for f in _FUNCTIONAL if isinstance(vars(F)[f], FunctionType) for n in vars(F)[f].__code__.co_names}
_OPERATORS = [f"__{r}{name}__" for name in names("add sub mul truediv matmul pow") for r in ("", "r", "i")]
_METHODS = (*_OPERATORS, *names("__neg__ __getitem__ relu clamp flatten reshape view abs exp mean sum"))
_OWNERS: list[tuple[Any, list[str]]] = [
    (F, _FUNCTIONAL),
    (torch, sorted(name for name in _BEHIND if isinstance(vars(torch).get(name), BuiltinFunctionType))),
    (torch.Tensor, sorted(name for name in _METHODS if hasattr(torch.Tensor, name))),
]
_FUNCTIONS = [[getattr(owner, name) for name in found] for owner, found in _OWNERS]
"""Functions of PyTorch that models, and the bounds themselves, are computed with, as they were when this library was imported."""


def check_surroundings(model: nn.Module) -> None:
    """Refuse hooks on all modules, modes, replaced functions of PyTorch, cached parametrizations, and flushed denormals."""
    for registered_by, hooks in _GLOBAL_HOOKS.items():
        for hook in hooks.values():
            raise CaptureError(
                f"model: {_called(hook)} is a hook on every module of the process ({registered_by}), which may change what "
                f"each of them computes; remove it (handle.remove()) before you bound a model, or register it on the modules it is for"
            )
    modes = [m for m in _get_current_function_mode_stack() if not isinstance(m, DeviceContext)]
    for mode in (*modes, *_get_current_dispatch_mode_stack()):
        raise CaptureError(
            f"model: the mode {type(mode).__name__} is active, which may change what every function of PyTorch computes; leave it "
            f"before you bound a model"
        )
    for (owner, found), functions in zip(_OWNERS, _FUNCTIONS, strict=True):
        now = [getattr(owner, name, None) for name in found]
        if any(map(operator.is_not, now, functions)):
            name, other = next((n, o) for n, o, f in zip(found, now, functions, strict=True) if o is not f)
            raise CaptureError(
                f"model: {owner.__name__}.{name} has been replaced by {_called(other)} since autodual was imported, and models "
                f"and bounds are computed with it; put the original back"
            )
    if parametrize._cache_enabled and any(parametrize.is_parametrized(m) for m in model.modules()):
        raise CaptureError(
            "model: has parametrizations, and torch.nn.utils.parametrize.cached() is active, so its weights may be out of date; "
            "leave it before you bound a model"
        )
    # This is asked of this thread only; threads that were started while it was so keep the setting.
    if not bool(torch.tensor(2.0**-140) * 2):
        raise CaptureError(
            "model: numbers below the smallest normal one are flushed to zero (torch.set_flush_denormal(True), or a library compiled "
            "with fast-math), so that a weight of 1e-39 counts as nothing however large its factor is; call "
            "torch.set_flush_denormal(False) before PyTorch starts its threads"
        )


def _called(function: Any) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or 'unknown'}.{name}"


# Random numbers: a certificate is about one function.

_RANDOM = names(
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli poisson multinomial binomial normal_ uniform_ "
    "random_ exponential_ cauchy_ log_normal_ geometric_ bernoulli_ gumbel_softmax trunc_normal_ _standard_gamma _sample_dirichlet"
)
"""Functions that draw random numbers."""

GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
"""Classes of objects that random numbers come from."""


def random_state(device: torch.device, held: list[Any]) -> tuple[Any, ...]:
    """The states of all global random numbers, and of the generators that the model holds.

    Other threads move them, too: a change is only a reason to look again.
    """
    on_device = torch.cuda.get_rng_state(device).tolist() if device.type == "cuda" else None
    torch_state = torch.get_rng_state().numpy().tobytes()
    return random.getstate(), _numpy_state(), torch_state, on_device, [_state_of(generator) for generator in held]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return repr(generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state())


def _numpy_state() -> Any:
    """NumPy's global state, read from memory, which takes a microsecond; `np.random.get_state` takes 50."""
    generator = _numpy_generator()
    if type(generator) is not np.random.MT19937:
        return repr(generator.state)
    return ctypes.string_at(generator.ctypes.state_address, 625 * 4)  # 624 words and a position


def _numpy_generator() -> Any:
    return np.random.get_bit_generator()  # type: ignore[attr-defined]


@contextmanager
def no_random_numbers(watch: Watch, held: list[Any]) -> Iterator[None]:
    """Refuse random numbers that this thread draws, whatever other threads do."""
    drawn: list[str] = []

    def notice(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and isinstance(getattr(function, "__self__", None), random.Random):
            drawn.append(f"Python's random, {function.__name__}")

    # Python tells a thread's own profiler of every call; unless somebody is profiling already. While this thread holds the lock of
    # NumPy's generator, nobody else draws from it; a lock of another kind would stop this thread, too.
    lock = _numpy_generator().lock
    reentrant, free = type(lock) is type(threading.RLock()), sys.getprofile() is None
    with _TorchDraws(watch), lock if reentrant else nullcontext():
        numpy_before, before = _numpy_state(), [_state_of(generator) for generator in held]
        if free:
            sys.setprofile(notice)
        try:
            yield
        finally:
            if free:
                sys.setprofile(None)
        if reentrant and numpy_before != _numpy_state():
            drawn.append("numpy.random")
    if before != [_state_of(generator) for generator in held]:
        drawn.append("from a generator that it holds")
    if drawn:
        raise _drawn(watch, drawn[0])


class _TorchDraws(TorchFunctionMode):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _RANDOM:
            raise _drawn(self._watch, name)
        return func(*args, **(kwargs or {}))


def _drawn(watch: Watch, how: str) -> CaptureError:
    return watch.refused(
        f"draws random numbers ({how}), and a certificate is about one function. Draw them once, in __init__, and keep them as a "
        f"buffer; or leave the noise out of the module that you certify"
    )
