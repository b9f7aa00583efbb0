"""From a user's model and data to what engines work on; everything that cannot be bounded honestly is refused here."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError, CaptureError
from autodual._tensor import CERTIFYING_DTYPES, full_precision, needs_gradient
from autodual.dual import REGISTRY, DualNetwork, build
from autodual.dual.base import AffineDual, DualLayer, evaluate
from autodual.dual.building import (
    differ_by_more_than_rounding,
    non_finite_constant,
    non_finite_parameter,
    with_differences,
)
from autodual.engines.backward.dual import Dual
from autodual.engines.ibp import evaluate_with_error
from autodual.engines.results import BoundEngine, Bounds, ProbableBounds, SoundBounds
from autodual.engines.rounding import MORE_ROUNDINGS, of_sum
from autodual.graph import Network, check_current
from autodual.graph import capture as capture_with
from autodual.interval import Interval
from autodual.sets import Box, InputSet, L1Ball, L2Ball, LinfBall, Perturbation, norm_of
from autodual.sets.input_sets import rounded_up
from autodual.spec import Label, Specification
from autodual.spec import check_classifier as check_classifier
from autodual.spec import check_label_range as check_label_range
from autodual.spec import check_labels as check_labels


def capture(model: nn.Module, example: Tensor) -> Network:
    """Turn a model into a graph, to look at or to bound often. Parameters stay live.

    Args:
        model: Any nn.Module; it is traced, and left as it was.
        example: A batch [N, *shape] of the shape, dtype and device that inputs will have.

    Returns:
        The graph, which `certify`, `bounds` and `attack` take in the model's place. They trace the model again, and refuse a graph
        that no longer is its own.

    Raises:
        ArgumentError: The example is no batch of finite floating-point numbers, or lies on another device than the model.
        CaptureError: The model branches on values, mixes examples, draws random numbers, or cannot be traced for another reason.
        UnsupportedOperationError: The model uses an operation that is not understood.

    Examples:
        >>> import autodual as ad
        >>> images, labels = ad.load_digits("test")
        >>> network = ad.capture(ad.load_digits_network(), images[:2])
        >>> network.output_shape
        (10,)
    """
    check_input(example, "example")
    check_placement(model, example, "example")
    return capture_with(model, example, REGISTRY)


def bounds(model: nn.Module | Network, input_set: InputSet, engine: BoundEngine | None = None) -> Bounds:
    """Bound the output, and what enters every activation, for every input of the set.

    Differentiable in the parameters, the inputs and eps. Sound and probable bounds are rounded outwards, so that they hold as they
    are. Sound ones are computed in float64 where float32 would have to move them by more than a hundredth of their width. Gradients
    are those of the bounds without rounding.

    Args:
        model: Any nn.Module in evaluation mode, whose output may have any shape; or a captured Network.
        input_set: Where the inputs may lie: `LinfBall(0.1).around(x)`, `Box(lower, upper)`, or your own.
        engine: How to bound; `Dual()` if not given.

    Returns:
        `output` and `layers`, intervals by name. The type says what they are worth: `SoundBounds`, `ProbableBounds` or
        `EstimatedBounds`.

    Raises:
        ArgumentError: An argument has a value, shape, dtype or device that cannot be used.
        CaptureError: The model could not be turned into a graph.
        MemoryBudgetError: The work does not fit into the memory, however it is cut.

    Examples:
        >>> import torch
        >>> import autodual as ad
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
        >>> found = ad.bounds(model, ad.LinfBall(0.1).around(torch.zeros(5, 3)))
        >>> type(found).__name__, found.output.lower.shape
        ('SoundBounds', torch.Size([5, 2]))
    """
    engine = Dual() if engine is None else engine
    check_engine(engine)
    if not isinstance(input_set, InputSet):
        raise ArgumentError(
            f"input_set must be an InputSet such as LinfBall(0.1).around(x) or Box(lower, upper), got {type(input_set).__name__}"
        )
    check_region(input_set, "input_set")
    with full_precision():
        prepared = prepare(model, input_set.centre, input_set)
        found = engine.bounds(prepared.network, input_set)
        if not isinstance(found, SoundBounds | ProbableBounds):
            return found
        with torch.no_grad():
            outer = _known(_rounded_outwards(prepared, input_set, engine, found))
    layers = {name: _with_gradient(outer.layers[name], interval) for name, interval in found.layers.items()}
    return replace(outer, output=_with_gradient(outer.output, found.output), layers=layers)


def _known(bounds: Bounds) -> Bounds:
    """Bounds without NaN: what overflowed is known to be below +inf and above -inf, and no more."""

    def known(ends: Interval) -> Interval:
        unknown = -torch.inf, torch.inf
        lower, upper = (
            torch.where(e.isfinite(), e, end) for e, end in zip((ends.lower, ends.upper), unknown, strict=True)
        )
        return Interval(lower, upper)

    layers = {name: known(ends) for name, ends in bounds.layers.items()}
    return replace(bounds, output=known(bounds.output), layers=layers)


ROOM = 0.01
"""The largest part of a bound's width that rounding outwards may add in float32."""


def _rounded_outwards(prepared: Prepared, region: InputSet, engine: BoundEngine, found: Bounds) -> Bounds:
    """Bounds that hold as they are, in the dtype of the set."""
    wider = region.double()
    if prepared.only_in_double and wider is None:
        raise ArgumentError(
            "model: computes weights that float32 cannot hold, so its bounds need float64; give the input set a method `double`, or "
            "give model and set in float64"
        )
    outer = None if prepared.only_in_double else engine.enclose(prepared.network, region)
    if prepared.only_in_double and wider is not None:
        double = engine.enclose(prepared.in_double, wider)
        return found if double is None else _single_bounds(double)
    if outer is None:  # an engine of the user's own, which answers for its rounding
        return found
    if region.centre.dtype == torch.float64 or engine.random:  # to try twice would double delta
        return outer
    pairs = [(outer.output, found.output), *((outer.layers[name], found.layers[name]) for name in found.layers)]
    if all(bool((wide.width <= (1 + ROOM) * narrow.width).all()) for wide, narrow in pairs):
        return outer
    double = None if wider is None else engine.enclose(prepared.in_double, wider)
    if double is None:
        return outer
    return _single_bounds(double)


def _single_bounds(double: Bounds) -> Bounds:
    layers = {name: _to_single(i) for name, i in double.layers.items()}
    return replace(double, output=_to_single(double.output), layers=layers)


def _to_single(interval: Interval) -> Interval:
    """The smallest interval of float32 numbers around one of float64 numbers."""
    return Interval(-rounded_up(-interval.lower, torch.float32), rounded_up(interval.upper, torch.float32))


class _Moved(torch.autograd.Function):
    """Other numbers with the gradient of the given ones."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, numbers: Tensor) -> Tensor:
        return numbers.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def _with_gradient(numbers: Interval, given: Interval) -> Interval:
    if not (needs_gradient(given.lower) or needs_gradient(given.upper)):
        return numbers
    return Interval(_Moved.apply(given.lower, numbers.lower), _Moved.apply(given.upper, numbers.upper))


@dataclass(frozen=True)
class Prepared:
    """A model that was captured, and checked to compute what its graph computes."""

    graph: Network
    network: DualNetwork
    output: Tensor
    """What the model itself computes for the inputs that it was prepared for."""

    @cached_property
    def in_double(self) -> DualNetwork:
        """The captured network in float64, with its parameters cast; what the model computes from them is computed in float64."""
        if self.graph.dtype == torch.float64:
            return self.network
        double = build(self.graph, dtype=torch.float64)
        return with_differences(double, self.network) if self.graph.computes_constants else double

    @cached_property
    def only_in_double(self) -> bool:
        """Whether the model computes constants that float32 rounds by more than a number: only float64 bounds the exact function."""
        if self.graph.dtype == torch.float64 or not self.graph.computes_constants:
            return False
        return differ_by_more_than_rounding(self.in_double, self.network)


def dual_network(model: nn.Module | Network, x: Tensor) -> DualNetwork:
    """Dual layers of a model in evaluation mode, checked to compute what the model computes on x."""
    with full_precision():
        return prepare(model, x).network


def prepare(model: nn.Module | Network, x: Tensor, region: InputSet | None = None) -> Prepared:
    """Capture a model in evaluation mode; its graph must compute what the model computes on x, and at points of the region.

    Inside `full_precision`, since TF32 differs by more than the rounding that is allowed for.
    """
    module = model.model if isinstance(model, Network) else model
    check_placement(module, x, "x")
    check_evaluation_mode(module)
    network = model if isinstance(model, Network) else capture_with(model, x, REGISTRY)
    if tuple(x.shape[1:]) != network.input_shape:
        raise ArgumentError(
            f"x has examples of shape {tuple(x.shape[1:])}, but the network was captured for {network.input_shape}; "
            f"capture it again for this shape"
        )
    if network is model:
        check_current(network, x)
    broken = non_finite_parameter(network)
    if broken is not None:
        raise ArgumentError(f"model: {broken} holds NaN or infinite values, so nothing can be proved about it")
    if network.computes_constants:
        _check_choices(network)
    dual = build(network)
    broken = non_finite_constant(dual, x.dtype, checked=module.parameters())
    if broken is not None:
        raise ArgumentError(
            f"model: {broken} computes with a constant that is NaN or infinite in {x.dtype} (as after a division by zero, or batch "
            f"normalisation whose variance + eps is not positive), so nothing can be proved about it"
        )
    _check_transposes(network, dual, x.device)
    batches = [x.detach()]  # the whole batch, since a model may branch on its size
    if region is not None:
        places = torch.arange(2, x[0].numel() + 2, device=x.device)
        drawn = (places.square() * 40503 >> 12) % 2 == 0  # without a pattern that a network's layout could share
        signs = torch.where(drawn, 1.0, -1.0).to(x).reshape(x.shape[1:])
        some = region[slice(0, COMPARED)]
        corners = [some.vertex(sign * signs.expand_as(some.centre)).detach() for sign in (1, -1)]
        batches.append(torch.cat(corners))
    output = _check_faithful(network, dual, batches)
    if network.dtype == torch.float64 and network.computes_constants:
        dual = with_differences(dual, build(network, dtype=torch.float32))
    return Prepared(network, dual, output)


def _check_choices(network: Network) -> None:
    """Refuse a model that computes other whole numbers, such as indices, in float64 than in float32."""
    with torch.no_grad():
        single, double = network.parameters_now(torch.float32), network.parameters_now(torch.float64)
    for index, value in single.items():
        if isinstance(value, Tensor) and not value.is_floating_point() and not torch.equal(value, double[index]):
            raise CaptureError(
                f"{network.nodes[index].name}: computes whole numbers that depend on the precision, so that float32 and float64 "
                f"choose differently; compute them once, beforehand, and keep them as a buffer"
            )


@torch.no_grad()
def _check_transposes(network: Network, dual: DualNetwork, device: torch.device) -> None:
    """Refuse a layer with <v, W x> != <W' v, x>. Autodiff's W' is not always that of what PyTorch computes, nor is everybody's own."""
    unproved = [i for i, node in enumerate(dual.nodes) if _has_unproved_transpose(node.layer)]
    if not unproved:
        return
    double = dual if network.dtype == torch.float64 else build(network, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for index in unproved:
        node, shapes = double.nodes[index], double.operand_shapes(index)
        assert isinstance(node.layer, AffineDual)
        v, *operands = (
            torch.randn(1, *shape, generator=generator, dtype=torch.float64).to(device)
            for shape in (node.shape, *shapes)
        )
        terms = v * node.layer.linear(*operands)
        back = node.layer.transpose(v, shapes)
        difference = terms.sum() - sum((a * b).sum() for a, b in zip(back, operands, strict=True))
        if bool(difference.abs() > 2**-26 * terms.abs().sum()):
            raise CaptureError(
                f"{node.name}: the transpose of its dual layer is not that of what it computes (<v, W x> and <W' v, x> differ by "
                f"{difference.abs().item():.3g}), so bounds through it would be wrong"
            )


def _has_unproved_transpose(layer: DualLayer | None) -> bool:
    """Whether the transpose comes from autodiff, or from somebody else than this package, whose own are tested."""
    if not isinstance(layer, AffineDual):
        return False
    return type(layer).transpose is AffineDual.transpose or not type(layer).__module__.startswith("autodual.")


COMPARED = 2
"""Examples whose outputs by the model and by its graph may differ only as much as rounding can explain."""


@torch.no_grad()
def _check_faithful(network: Network, dual: DualNetwork, batches: list[Tensor]) -> Tensor:
    """The model's output for the first batch. A graph that computes something else than the model proves nothing about it."""
    outputs = [network.model(batch.clone()) for batch in batches]  # a copy, since a model may write into its input
    if not all(bool(output.isfinite().all()) for output in outputs):
        raise ArgumentError("model: its output holds NaN or infinite values, so nothing can be proved about it")
    if all(output.shape == (len(batch), *network.output_shape) for batch, output in zip(batches, outputs, strict=True)):
        x, expected = (torch.cat([values[: 2 * COMPARED] for values in of_all]) for of_all in (batches, outputs))
        operand, found = _last_step(dual, x)
        difference = (expected - found).abs()
        if operand is not None and bool((difference <= _least_run_error(dual, operand)).all()):
            return outputs[0]
        allowed = 2 * evaluate_with_error(dual, x)[1]
        if bool((difference <= torch.where(allowed.isfinite(), allowed, expected.abs())).all()):
            return outputs[0]
    raise CaptureError(
        "model: the captured graph does not reproduce the model's output. The model may be random, may branch on the batch "
        "size or on isinstance(x, Tensor), or has got other modules or hooks since it was captured (then capture it again); "
        "certificates need one function per example"
    )


def _last_step(dual: DualNetwork, x: Tensor) -> tuple[Tensor | None, Tensor]:
    """What the last layer reads, if that is one tensor, and the output."""
    last = dual.nodes[dual.output]
    if last.layer is None or len(last.inputs) != 1:
        return None, dual.forward(x)
    operand = replace(dual, output=last.inputs[0]).forward(x)
    return operand, evaluate(last.layer, operand)


def _least_run_error(network: DualNetwork, operand: Tensor) -> Tensor:
    """Bounds the error of `evaluate_with_error` from below, by the last layer alone, which reads `operand`: gamma (|W| |z| + |b|).

    The whole error is far larger, and far more work. Zero where the last layer is not such a sum.
    """
    layer = network.nodes[network.output].layer
    if not isinstance(layer, AffineDual) or layer.exact:
        return operand.new_zeros(())
    bias = layer.bias()
    size = layer.absolute(operand.abs())
    return of_sum(MORE_ROUNDINGS, operand.dtype) * (size if bias is None else size + bias.abs().to(size))


# What users pass, checked.


def check_problem(x: Tensor, labels: Tensor, ball: Perturbation) -> Tensor:
    """Refuse what cannot be certified; returns the labels as int64. Called by what the user calls."""
    check_input(x, "x")
    check_ball(ball, x)
    labels = check_labels(labels, x)
    warn_of_raw_pixels(x, ball, stacklevel=3)
    return labels


def check_asked(
    x: Tensor, asked: Tensor | Specification, ball: Perturbation | InputSet
) -> tuple[Specification, Perturbation]:
    """Refuse what cannot be asked; labels become a specification, and a set a perturbation. Called by what the user calls."""
    check_input(x, "x")
    if isinstance(ball, InputSet):
        ball = GivenSet(ball, x)
    check_ball(ball, x)
    if isinstance(asked, type) and issubclass(asked, Specification):
        raise ArgumentError(
            f"labels must be a tensor or a specification such as TopK(labels, 3), got the class {asked.__name__}"
        )
    specification = asked if isinstance(asked, Specification) else Label(check_labels(asked, x))
    warn_of_raw_pixels(x, ball, stacklevel=3)
    return specification, ball


def check_engine(engine: BoundEngine) -> None:
    if not isinstance(engine, BoundEngine):
        hint = f"; call it: {engine.__name__}()" if isinstance(engine, type) else ""
        raise ArgumentError(f"engine must be an engine such as Dual() or IBP(), got {engine!r}{hint}")


def check_input(x: Tensor, name: str) -> None:
    if not isinstance(x, Tensor):
        raise ArgumentError(
            f"{name} must be a tensor, got {type(x).__name__}; make one with torch.as_tensor, or use certify_data"
        )
    if x.dtype not in CERTIFYING_DTYPES:
        raise ArgumentError(
            f"{name} must be float32 or float64, got {x.dtype}; convert it with {name}.float() (integers need scaling to the "
            f"units that eps is given in, tokens their embedding: certify what follows it; half precision cannot carry a proof)"
        )
    if x.dim() < 2 or x.shape[0] == 0 or x.numel() == 0:
        raise ArgumentError(f"{name} must be a batch [N, *shape] with at least one example, got shape {tuple(x.shape)}")
    if x.device.type == "meta":
        raise ArgumentError(f"{name} is on the device 'meta', so it has a shape but no values")
    check_finite(x, name)


def check_region(region: InputSet, name: str) -> None:
    check_input(region.centre, f"{name}.centre")
    if norm_of(region) is not None and not bool((region.radius.isfinite() & (region.radius >= 0)).all()):
        raise ArgumentError(f"{name}.radius must be finite and not negative everywhere")


def check_finite(x: Tensor, name: str) -> None:
    lowest, highest = x.detach().aminmax()  # one pass, which NaN comes out of, too
    if not bool(lowest.isfinite() & highest.isfinite()):
        count = int((~torch.isfinite(x)).sum())
        raise ArgumentError(f"{name} holds {count} NaN or infinite values")


def check_placement(model: nn.Module, x: Tensor, name: str) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module or a captured Network, got {type(model).__name__}")
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not tensor.is_floating_point():
            continue
        if tensor.device != x.device:
            raise ArgumentError(
                f"model and {name} are on different devices: {path} on {tensor.device}, {name} on {x.device}"
            )
        if tensor.dtype != x.dtype:
            raise ArgumentError(
                f"model and {name} have different dtypes: {path} is {tensor.dtype}, {name} is {x.dtype}; convert one with "
                f".float() or .double()"
            )


def check_evaluation_mode(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ArgumentError(
                f"model: {path or type(module).__name__} is batch normalisation in training mode, whose output depends on the "
                f"other examples of the batch; call model.eval() first"
            )
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise ArgumentError(
                f"model: {path or type(module).__name__} is dropout in training mode, whose output is random; call model.eval() first"
            )


def check_perturbation(ball: Perturbation) -> None:
    if not isinstance(ball, Perturbation):
        kind = f"the class {ball.__name__}" if isinstance(ball, type) else type(ball).__name__
        raise ArgumentError(f"ball must be a perturbation such as LinfBall(0.1), got {kind}")


def check_ball(ball: Perturbation, x: Tensor) -> None:
    check_perturbation(ball)
    if isinstance(ball.eps, Tensor) and not bool((ball.eps.isfinite() & (ball.eps >= 0)).all()):
        raise ArgumentError("ball.eps must be finite and not negative everywhere")
    if isinstance(ball, LinfBall):
        ball.check_inside(x)


class GivenSet(Perturbation):
    """Sets that the user gave, one for each example. They have no eps, so there is no radius to search for."""

    eps = float("nan")

    def __init__(self, region: InputSet, x: Tensor) -> None:
        check_region(region, "ball")
        centre = region.centre
        if centre.shape != x.shape or centre.dtype != x.dtype or centre.device != x.device:
            raise ArgumentError(
                f"ball: a set must have the shape, dtype and device of x, got {tuple(centre.shape)} {centre.dtype} on {centre.device} "
                f"for x of {tuple(x.shape)} {x.dtype} on {x.device}"
            )
        outside = (~_may_contain(region, x)).nonzero().flatten().tolist()
        if outside:
            raise ArgumentError(
                f"ball: x lies outside of its set at example {outside[0]}; give an input inside, such as the set's centre"
            )
        self.region = region

    def around(self, x: Tensor) -> InputSet:
        if x.dtype == self.region.centre.dtype:
            return self.region
        wide = self.region.double()
        if wide is None:
            raise ArgumentError(f"{type(self.region).__name__} has no method `double`")
        return wide

    def within(self, x: Tensor) -> InputSet:
        return self.region.inwards()

    def with_eps(self, eps: float | Tensor) -> Perturbation:
        raise ArgumentError(
            f"ball: a {type(self.region).__name__} has one size, and a radius is searched for over many; use a perturbation "
            f"such as LinfBall(0.1)"
        )


def _may_contain(region: InputSet, x: Tensor) -> Tensor:
    """[N] bool: x is not clearly outside. Exact for boxes; else, seen from the centre, x is no farther than the set reaches there."""
    x = x.detach()
    if isinstance(region, Box):
        return ((region.lower <= x) & (x <= region.upper)).flatten(1).all(1)
    away = region.centre.detach() - x
    there, room = (away * x).flatten(1).sum(1), 64 * torch.finfo(x.dtype).eps * (away * x).flatten(1).abs().sum(1)
    return ~(there < region.minimise(away.unsqueeze(0)).squeeze(0) - room)


# A warning where eps seems to be in other units than the inputs.

FEWEST_LEVELS = 16
"""Images, or whole numbers, that reach this are taken for grey levels; the handwritten digits of scikit-learn have no more."""


def warn_of_raw_pixels(x: Tensor, ball: Perturbation, stacklevel: int) -> bool:
    """Warn, and return True, where x seems to hold grey levels and eps is less than one of them, as for images in [0, 1]."""
    eps = _largest_eps(ball)
    if not 0 < eps < 1:
        return False
    lowest, highest = (end.item() for end in x.detach().aminmax())
    if lowest < 0 or highest < FEWEST_LEVELS or not (_has_image_shape(x) or _whole(x.detach())):
        return False
    warnings.warn(
        f"x looks like raw pixels, values from {lowest:g} to {highest:g}, and eps = {eps:g} is in the same units: no pixel may change "
        f"by as much as one grey level, which looks more robust than it is. If eps is meant for images in [0, 1], scale both alike: "
        f"divide x by the highest level (255 for bytes) if the model takes such images, or else multiply eps by it",
        stacklevel=stacklevel + 1,
    )
    return True


def _largest_eps(ball: Perturbation) -> float:
    """The largest eps of a ball; infinite for other sets, whose eps may be an angle or anything."""
    if not isinstance(ball, LinfBall | L2Ball | L1Ball):
        return float("inf")
    eps = torch.as_tensor(ball.eps).detach()
    most = ball.scale.amax().item() if isinstance(ball, LinfBall) and ball.scale is not None else 1.0
    return eps.amax().item() * most if eps.numel() else float("inf")


def _has_image_shape(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] in (1, 3)


def _whole(x: Tensor) -> bool:
    """Whether all values are whole numbers, up to the rounding of a division by 255 and a multiplication on a GPU."""
    return bool(((x - x.round()).abs() < 1e-3).all())
