"""What users pass, checked: models, inputs, labels, sets and engines that cannot be used are refused before anything is computed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._tensor import check_dense
from autodual.engines.backward.dual import Dual
from autodual.engines.results import BoundEngine
from autodual.graph.record import no_module
from autodual.sets import GivenSet, InputSet, LinfBall, Perturbation, norm_of
from autodual.sets.balls import warn_of_raw_pixels
from autodual.spec import Label, Specification, check_labels


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
        check_region(ball, "ball")
        ball = GivenSet(ball, x)
    check_ball(ball, x)
    if isinstance(asked, type) and issubclass(asked, Specification):
        raise ArgumentError(
            f"labels must be a tensor or a specification such as TopK(labels, 3), got the class {asked.__name__}"
        )
    specification = asked if isinstance(asked, Specification) else Label(check_labels(asked, x))
    warn_of_raw_pixels(x, ball, stacklevel=3)
    return specification, ball


def require_engine(engine: BoundEngine | None) -> BoundEngine:
    """The engine, `Dual()` if none is given; refuses anything else."""
    if engine is None:
        return Dual()
    if not isinstance(engine, BoundEngine):
        hint = f"; call it: {engine.__name__}()" if isinstance(engine, type) else ""
        raise ArgumentError(f"engine must be an engine such as Dual() or IBP(), got {engine!r}{hint}")
    return engine


def check_input(x: Tensor, name: str) -> None:
    """Refuse anything but a batch of finite numbers in a dtype that can carry a proof."""
    if not isinstance(x, Tensor):
        raise ArgumentError(
            f"{name} must be a tensor, got {type(x).__name__}; make one with torch.as_tensor, or use certify_data"
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise ArgumentError(
            f"{name} must be float32 or float64, got {x.dtype}; convert it with {name}.float() (integers need scaling to the "
            f"units that eps is given in, tokens their embedding: certify what follows it; half precision cannot carry a proof)"
        )
    if x.dim() < 2 or x.shape[0] == 0 or x.numel() == 0:
        raise ArgumentError(f"{name} must be a batch [N, *shape] with at least one example, got shape {tuple(x.shape)}")
    check_dense(x, name)
    check_finite(x, name)


def check_region(region: InputSet, name: str) -> None:
    """Refuse a set whose centre is no such batch, or whose radius is negative or not finite."""
    check_input(region.centre, f"{name}.centre")
    if norm_of(region) is not None and not bool((region.radius.isfinite() & (region.radius >= 0)).all()):
        raise ArgumentError(f"{name}.radius must be finite and not negative everywhere")


def check_finite(x: Tensor, name: str) -> None:
    """Refuse NaN and infinities."""
    lowest, highest = x.detach().aminmax()  # one pass, which NaN comes out of, too
    if not bool(lowest.isfinite() & highest.isfinite()):
        count = int((~torch.isfinite(x)).sum())
        raise ArgumentError(f"{name} holds {count} NaN or infinite values")


def check_placement(model: nn.Module, x: Tensor, name: str) -> None:
    """Refuse a model whose parameters and buffers are on another device, or in another dtype, than the input."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module or a captured Network, got {no_module(model)}")
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
    """Refuse modules whose training mode mixes examples or is random."""
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
    """Refuse anything but a perturbation, such as a class that was not called."""
    if not isinstance(ball, Perturbation):
        kind = f"the class {ball.__name__}" if isinstance(ball, type) else type(ball).__name__
        raise ArgumentError(f"ball must be a perturbation such as LinfBall(0.1), got {kind}")


def check_ball(ball: Perturbation, x: Tensor) -> None:
    """Refuse a perturbation that has no finite size, or inputs that are outside of its range already."""
    check_perturbation(ball)
    if isinstance(ball.eps, Tensor) and not bool((ball.eps.isfinite() & (ball.eps >= 0)).all()):
        raise ArgumentError("ball.eps must be finite and not negative everywhere")
    if isinstance(ball, LinfBall):
        ball.check_inside(x)
