"""MODEL -> GRAPH: record what a module computes for inputs of one shape, and make sure that it is one function.

A capture runs `forward` once on proxies to record it, and again on tensors, under other circumstances: with other numbers of
examples, without gradients, in inference mode, after whatever the first run has stored in the model. All runs must have made their
outputs by the same calls: of the same functions, with the same numbers, from the same parameters and constants. So none of these
becomes a constant of the graph: the size of the batch, a counter, a clock, random numbers, the gradient mode, the type of x.
Comparing outputs would not be enough: a clamp may be inactive at one point, an activation saturated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.proxy import TraceError

from autodual._errors import ArgumentError, AutodualError, CaptureError
from autodual.graph.calls import TAKES_SHAPE, Calls, Constant, Step, Value, equal
from autodual.graph.guards import check_model, check_surroundings, no_random_numbers, random_state
from autodual.graph.network import Network, check_unchanged, network_of, same
from autodual.graph.registry import Registry
from autodual.graph.tracer import ConcreteTracer

CAPTURE_BATCH, OTHER_BATCH = 13, 2
"""Sizes of the batches that are run. What is the same for both is not the batch."""


def capture(model: nn.Module, example: Tensor, registry: Registry, may_draw: bool = False) -> Network:
    """The graph of `model` for inputs shaped like `example` [N, *shape]; only the first example's values are used.

    may_draw: whether parameters may be computed with random numbers, as in a step of training, which certifies nothing.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    check_model(model, example)
    check_surroundings(model)

    def sample(batch: int) -> Tensor:
        return example.detach()[:1].expand(batch, *example.shape[1:]).clone()

    with torch.inference_mode(False):
        tracer = ConcreteTracer(registry, model)
        generators = tracer.generators()
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
            if tracer.watch.told and not known:
                compare(given, nullcontext())
            if tracer.watch.asked or not example.is_contiguous():
                _vary_circumstances(tracer, sample(OTHER_BATCH), example)
            if not may_draw and drawn != random_state(example.device, generators):  # by the model, or by another thread
                compare(OTHER_BATCH, no_random_numbers(tracer.watch, generators))
        finally:
            tracer.dissolve()
    return network


def check_current(network: Network, example: Tensor) -> None:
    """Refuse a captured network whose model would be another graph by now. Parameters and buffers may have changed: they are live.

    The model is traced again and compared, call by call, with every number in it: global variables, closures and the state of
    objects steer `forward`, too, and nothing short of running it tells whether they have changed.
    """
    check_unchanged(network, capture(network.model, example, network.registry))


def _vary_circumstances(tracer: ConcreteTracer, sample: Tensor, example: Tensor) -> None:
    """Refuse a model that computes something else for a tensor that lies otherwise in memory, or that requires gradients.

    Only for a model that has asked, or for inputs that lie otherwise. It may raise an error there: it is no function of such inputs
    then, and not another one.
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
    """The tensor as it lies in memory otherwise: as usual, with gaps between the examples, in reverse order, with channels last.

    None of them is the tensor itself, so that the result may be written to.
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
    """Where, and how, the calls differ that the outputs were made by. What a model only stores does not count."""
    if second.written - first.written:
        return "", f"writes into {min(second.written - first.written)}"
    batches = first.batch, second.batch
    compared: set[tuple[int, int, int, int]] = set()
    waiting: list[tuple[Any, Any, tuple[Step, Step] | None]] = [
        (first.seen(first.output), second.seen(second.output), None)
    ]
    while waiting:
        one, other, users = waiting.pop()
        if not (isinstance(one, Value) and isinstance(other, Value)):
            if not _same(one, other, batches, []):
                return _told(users)
            continue
        a, b = one.maker, other.maker
        if not (isinstance(a, Step) and isinstance(b, Step)):
            if not (isinstance(a, str) and a == b):
                return _told(users)
            continue
        if users is not None and users[0].varies and not _same_for_all(one, other, batches):
            return _told(users)
        pair = id(a), one.position, id(b), other.position
        if pair in compared:
            continue
        compared.add(pair)
        inputs: list[tuple[Value, Value]] = []
        given, again = (a.args, a.kwargs), (b.args, b.kwargs)
        alike = one.position == other.position and a.key == b.key
        if not alike or not _same(given, again, batches, inputs, takes_shape=a.key in TAKES_SHAPE):
            return _told((a, b))
        if one.varies and not _same_shape(one.shape, other.shape, batches):
            return b.path or a.path, f"{b!r} has shape {other.shape} instead of {one.shape}"
        waiting += [(x, y, (a, b)) for x, y in inputs]
    return None


def _told(users: tuple[Step, Step] | None) -> tuple[str, str]:
    """Where and how two calls differ, or what they use."""
    if users is None:
        return "", "another output"
    a, b = users
    return b.path or a.path, f"{b!r} instead of {a!r}" if repr(a) != repr(b) else f"{a!r} of something else"


def _same_shape(one: tuple[int, ...], other: tuple[int, ...], batches: tuple[int, int]) -> bool:
    """Whether both have one entry for each example of their batch, of the same shape."""
    return (one[:1], other[:1]) == (batches[:1], batches[1:]) and one[1:] == other[1:]


def _same_for_all(one: Value, other: Value, batches: tuple[int, int]) -> bool:
    """Whether what was computed of parameters and constants is the same for all examples of both batches."""
    if one.tensor is None or other.tensor is None:
        return one.varies and other.varies
    return _same_tensor(one.tensor, other.tensor, batches, computed=True)


def _same(
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
    """Equal but for the order in which a sum was computed, which may depend on shapes.

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
