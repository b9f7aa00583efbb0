"""Bad calls are refused with the right exception, a message that names the argument or the module, and nothing half-done."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autodual as ad
from small import DOUBLE, Net, batch, convnet, mlp

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Call:
    """The arguments of a good call, of which a case spoils one."""

    model: Any
    x: Any
    labels: Any
    ball: Any
    engine: Any


def good() -> Call:
    return Call(mlp(4, 5, 3), batch(3, 4), torch.tensor([0, 1, 2]), ad.LinfBall(0.1), None)


def spoilt(**arguments: Any) -> Call:
    return Call(**{**vars(good()), **arguments})


def _with(x: Tensor, value: float) -> Tensor:
    x = x.clone()
    x.view(-1)[0] = value
    return x


def _broken_weight(value: float) -> nn.Module:
    model = mlp(4, 5, 3)
    with torch.no_grad():
        model[2].weight[0, 0] = value
    return model


def _broken_buffer() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).to(DOUBLE).eval()
    model[1].running_var.fill_(INF)
    return model


def _double(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).to(DOUBLE).eval()


def _in_training(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).to(DOUBLE).train()


Table = dict[str, tuple[Callable[[], Call], str]]
"""Name: the call, and what the message says."""

EVERYWHERE: Table = {
    # what is certified
    "model is a function": (lambda: spoilt(model=torch.relu), r"model must be a torch\.nn\.Module"),
    "model is a class": (lambda: spoilt(model=nn.ReLU), r"model must be a torch\.nn\.Module"),
    "model is nothing": (lambda: spoilt(model=None), "got NoneType"),
    # x
    "x is a list": (lambda: spoilt(x=[[0.0] * 4] * 3), "x must be a tensor, got list"),
    "x is an array": (
        lambda: spoilt(x=batch(3, 4).numpy()),
        "x must be a tensor, got ndarray; make one with torch.as_tensor",
    ),
    "x of integers": (
        lambda: spoilt(x=torch.zeros(3, 4, dtype=torch.uint8)),
        "x must be float32 or float64, got torch.uint8",
    ),
    "x in half precision": (lambda: spoilt(x=batch(3, 4).half()), "half precision cannot carry a proof"),
    "x in bfloat16": (lambda: spoilt(x=batch(3, 4).bfloat16()), "x must be float32 or float64, got torch.bfloat16"),
    "x of complex numbers": (lambda: spoilt(x=batch(3, 4) + 0j), "got torch.complex128"),
    "x with NaN": (lambda: spoilt(x=_with(batch(3, 4), NAN)), "x holds 1 NaN or infinite values"),
    "x with an infinity": (lambda: spoilt(x=_with(batch(3, 4), -INF)), "x holds 1 NaN or infinite values"),
    "no examples": (
        lambda: spoilt(x=batch(0, 4), labels=torch.zeros(0, dtype=torch.long)),
        "x must be a batch .* at least one example",
    ),
    "one example without batch": (lambda: spoilt(x=batch(3, 4)[0]), r"x must be a batch \[N, \*shape\]"),
    "examples without features": (lambda: spoilt(x=batch(3, 0)), r"got shape \(3, 0\)"),
    "x in another precision": (
        lambda: spoilt(x=batch(3, 4).float()),
        "different dtypes: 0.weight is torch.float64, x is torch.float32; convert one with",
    ),
    "x without values": (lambda: spoilt(x=batch(3, 4).to("meta")), "x is on the device 'meta'"),
    "x is sparse": (
        lambda: spoilt(x=batch(3, 4).to_sparse()),
        r"x is a tensor of the layout 'sparse_coo'.*x\.to_dense\(\)",
    ),
    "model on another device": (
        lambda: spoilt(model=mlp(4, 5, 3).to("meta")),
        "different devices: 0.weight on meta, x on cpu",
    ),
    # labels
    "labels as a list": (lambda: spoilt(labels=[0, 1, 2]), r"got list; use torch.as_tensor\(labels\)"),
    "labels as floats": (lambda: spoilt(labels=torch.zeros(3)), "labels must be .* got torch.float32"),
    "labels as booleans": (lambda: spoilt(labels=torch.zeros(3, dtype=torch.bool)), "labels must be .* got torch.bool"),
    "labels as columns": (
        lambda: spoilt(labels=torch.zeros(3, 1, dtype=torch.long)),
        r"labels must have shape \[3\], .*; pass labels.squeeze\(1\)",
    ),
    "labels as one-hot": (
        lambda: spoilt(labels=torch.eye(3, dtype=torch.long)),
        r"labels must have shape \[3\], .*; pass labels.argmax\(1\), if they are one-hot",
    ),
    "labels as one-hot floats": (lambda: spoilt(labels=torch.eye(3)), r"of one-hot labels, pass labels.argmax\(1\)"),
    "labels are sparse": (
        lambda: spoilt(labels=torch.tensor([0, 1, 2]).to_sparse()),
        "labels is a tensor of the layout 'sparse_coo'",
    ),
    "too few labels": (
        lambda: spoilt(labels=torch.tensor([0, 1])),
        r"labels must have shape \[3\], one per example, got \(2,\); x has the shape \(3, 4\)",
    ),
    "label too large": (lambda: spoilt(labels=torch.tensor([0, 1, 3])), r"labels must lie in 0 \.\.\. 2"),
    "label negative": (lambda: spoilt(labels=torch.tensor([0, 1, -1])), r"labels must lie in 0 \.\.\. 2"),
    "labels on another device": (
        lambda: spoilt(labels=torch.tensor([0, 1, 2], device="meta")),
        "labels and x are on different devices",
    ),
    # the perturbation
    "ball is a number": (lambda: spoilt(ball=0.1), r"ball must be a perturbation such as LinfBall\(0.1\), got float"),
    "ball is a class": (lambda: spoilt(ball=ad.LinfBall), "ball must be a perturbation .* got the class LinfBall"),
    "eps does not fit": (
        lambda: spoilt(ball=ad.LinfBall(torch.ones(5))),
        r"eps of shape \(5,\) does not fit x of shape \(3, 4\)",
    ),
    "eps per feature in l2": (
        lambda: spoilt(ball=ad.L2Ball(torch.ones(4))),
        "L2Ball: eps must be one number or one per example",
    ),
    "x outside clip": (lambda: spoilt(ball=ad.LinfBall(0.1, clip=(0.0, 0.5))), r"x lies outside clip = \(0.0, 0.5\)"),
    # the model's ways
    "output is an image": (
        lambda: spoilt(model=_double(nn.Unflatten(1, (2, 2)))),
        r"output must be \[N, C\], one score per class, but it is \[N, 2, 2\]",
    ),
    "batch norm in training": (
        lambda: spoilt(model=_in_training(nn.Linear(4, 3), nn.BatchNorm1d(3))),
        "1 is batch normalisation in training mode",
    ),
    "dropout in training": (
        lambda: spoilt(model=_in_training(nn.Linear(4, 3), nn.Dropout(0.5))),
        "1 is dropout in training mode",
    ),
}

FOR_PROOFS: Table = {
    "weight with NaN": (lambda: spoilt(model=_broken_weight(NAN)), "model: 2.weight holds NaN or infinite"),
    "weight with an infinity": (lambda: spoilt(model=_broken_weight(INF)), "model: 2.weight holds NaN or infinite"),
    "buffer with an infinity": (lambda: spoilt(model=_broken_buffer()), "model: 1.running_var holds NaN or infinite"),
    "scores that overflow": (
        lambda: spoilt(model=Net(lambda m, x: m.fc(x) * 1e300 * 1e300, fc=nn.Linear(4, 3))),
        "output holds NaN or infinite",
    ),
    "engine is a class": (lambda: spoilt(engine=ad.Dual), r"engine must be an engine .* call it: Dual\(\)"),
    "engine is a name": (
        lambda: spoilt(engine="dual"),
        r"engine must be an engine such as Dual\(\) or IBP\(\), got 'dual'",
    ),
    "network for another shape": (
        lambda: spoilt(model=ad.capture(convnet(), batch(1, 1, 6, 6)), x=batch(3, 1, 7, 6)),
        r"x has examples of shape \(1, 7, 6\), but the network was captured for \(1, 6, 6\)",
    ),
}

UNSUPPORTED: Table = {
    "nn.Softmax": (
        lambda: spoilt(model=_double(nn.Linear(4, 3), nn.Softmax(1))),
        "^model: ends in 'softmax', which would only make its bounds looser. Leave it out .* the labels are the same",
    ),
    "torch.logcumsumexp": (
        lambda: spoilt(model=_double(nn.Sequential(Net(lambda m, x: x.logcumsumexp(1))), nn.Linear(4, 3))),
        r"^0\.0: the operation 'logcumsumexp' .*logsumexp is supported.*autodual\.register",
    ),
    "torch.sin": (
        lambda: spoilt(model=Net(lambda m, x: torch.sin(x))),
        "^model: the operation 'sin' .*neither convex nor concave.*autodual.register",
    ),
    "x.cos()": (lambda: spoilt(model=Net(lambda m, x: x.cos())), "^model: the operation 'cos'"),
    "x.data": (lambda: spoilt(model=Net(lambda m, x: x.data)), r"the operation 'Tensor\.data' has no dual layer"),
}

NOT_CAPTURED: Table = {
    "branch on values": (
        lambda: spoilt(model=_double(nn.Linear(4, 3), Net(lambda m, x: x if x.sum() > 0 else -x))),
        "^1: control flow that depends on the input's values",
    ),
    "two outputs": (lambda: spoilt(model=Net(lambda m, x: (x, x))), "must return one tensor"),
    "shapes that do not fit": (lambda: spoilt(x=batch(3, 5)), r"could not be captured for an input of shape \(3, 5\)"),
    "an image without its batch": (
        lambda: spoilt(model=convnet(), x=batch(1, 6, 6), labels=torch.tensor([0])),
        r"^0: could not be captured for an input of shape \(1, 6, 6\)\. The first dimension is the batch, .* has shape \(6, 6\)",
    ),
    "flat images": (
        lambda: spoilt(model=convnet(), x=batch(3, 36)),
        r"shape \(3, 36\)\. The first dimension is the batch, so one example has shape \(36,\); a batch of 13 of them gave",
    ),
    "images without channels": (
        lambda: spoilt(model=convnet(), x=batch(3, 6, 6)),
        r"shape \(3, 6, 6\)\. The first dimension is the batch, so one example has shape \(6, 6\)",
    ),
}

NOT_AFFINE: Table = {}


def _state(call: Call) -> tuple[Any, ...]:
    tensors: list[Tensor] = []
    modes: list[bool] = []
    if isinstance(call.model, nn.Module):
        tensors += [*call.model.parameters(), *call.model.buffers()]
        modes += [m.training for m in call.model.modules()]
    tensors += [t for t in (call.x, call.labels) if isinstance(t, Tensor)]
    values = [None if t.is_meta else t.to_dense().detach().clone().nan_to_num(1e9) for t in tensors]
    precision = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.is_grad_enabled()
    return [None if v is None else v.tolist() for v in values], modes, precision, torch.get_rng_state().tolist()


REFUSED = {
    ad.ArgumentError: [EVERYWHERE, FOR_PROOFS],
    ad.UnsupportedOperationError: [UNSUPPORTED],
    ad.CaptureError: [NOT_CAPTURED],
    ad.AutodualError: [NOT_AFFINE],
}


def _cases(*tables: Table) -> Any:
    cases = [
        pytest.param(make, error, message, id=name)
        for error, group in REFUSED.items()
        for table in group
        if table in tables
        for name, (make, message) in table.items()
    ]
    return pytest.mark.parametrize(("make", "error", "message"), cases)


def _refused(call: Call, error: type[Exception], message: str, work: Callable[[Call], Any]) -> None:
    before = _state(call)
    with pytest.raises(error, match=f"(?s){message}") as caught:
        work(call)
    assert isinstance(caught.value, ad.AutodualError)
    assert _state(call) == before, "nothing is left half-done"


@_cases(EVERYWHERE, FOR_PROOFS, UNSUPPORTED, NOT_CAPTURED, NOT_AFFINE)
def test_certify(make: Callable[[], Call], error: type[Exception], message: str) -> None:
    _refused(make(), error, message, lambda c: ad.certify(c.model, c.x, c.labels, c.ball, c.engine))


@_cases(EVERYWHERE, FOR_PROOFS, UNSUPPORTED, NOT_CAPTURED, NOT_AFFINE)
def test_certified_radius(make: Callable[[], Call], error: type[Exception], message: str) -> None:
    _refused(make(), error, message, lambda c: ad.certified_radius(c.model, c.x, c.labels, c.ball, c.engine))


@_cases(EVERYWHERE)
def test_attack(make: Callable[[], Call], error: type[Exception], message: str) -> None:
    _refused(make(), error, message, lambda c: ad.attack(c.model, c.x, c.labels, c.ball))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (spoilt(x=batch(3, 5)), r"model: cannot be run on x of shape \(3, 5\), .* RuntimeError"),
        (spoilt(model=Net(lambda m, x: (x, x))), "model: must return one tensor, got tuple"),
    ],
)
def test_an_attack_on_a_model_that_does_not_run(call: Call, message: str) -> None:
    _refused(call, ad.ArgumentError, message, lambda c: ad.attack(c.model, c.x, c.labels, c.ball))


def test_an_attack_draws_from_generators() -> None:
    _refused(
        good(),
        ad.ArgumentError,
        "generator must be a torch.Generator or None, got int",
        lambda c: ad.attack(c.model, c.x, c.labels, c.ball, generator=1),
    )


@_cases(NOT_CAPTURED)
def test_loss(make: Callable[[], Call], error: type[Exception], message: str) -> None:
    _refused(make(), error, message, lambda c: ad.RobustCrossEntropy(c.model, c.ball)(c.x, c.labels))


@pytest.mark.parametrize(
    "name",
    ["x in another precision", "model on another device", "output is an image", "x with NaN", "x with an infinity"],
)
def test_loss_says_what_certificates_say(name: str) -> None:
    make, message = EVERYWHERE[name]
    _refused(make(), ad.ArgumentError, message, lambda c: ad.RobustCrossEntropy(c.model, c.ball)(c.x, c.labels))


def test_a_loss_needs_a_perturbation() -> None:
    """A set belongs to its inputs, and a loss sees new ones in every step."""
    with pytest.raises(ad.ArgumentError, match=r"ball must be a perturbation .* got Box"):
        ad.RobustCrossEntropy(good().model, ad.LinfBall(0.1).around(good().x))


@pytest.mark.parametrize("work", ["certify", "certified_radius", "attack", "RobustCrossEntropy", "SumEnsemble"])
def test_one_score_is_no_choice(work: str) -> None:
    """There is no other label, so that anything could be certified."""
    calls: dict[str, Callable[[Call], Any]] = {
        "certify": lambda c: ad.certify(c.model, c.x, c.labels, c.ball),
        "certified_radius": lambda c: ad.certified_radius(c.model, c.x, c.labels, c.ball),
        "attack": lambda c: ad.attack(c.model, c.x, c.labels, c.ball),
        "RobustCrossEntropy": lambda c: ad.RobustCrossEntropy(c.model, c.ball)(c.x, c.labels),
        "SumEnsemble": lambda c: ad.SumEnsemble([c.model], c.ball).certify(c.x, c.labels),
    }
    call = spoilt(model=mlp(4, 5, 1), labels=torch.tensor([0, 0, 0]), ball=ad.LinfBall(9.0))
    _refused(
        call, ad.ArgumentError, r"at least two classes, but it is \[N, 1\].*torch\.cat\(\[-z, z\], 1\)", calls[work]
    )


def test_a_sign_as_two_scores() -> None:
    inner = mlp(4, 5, 1)
    model = Net(lambda m, x: torch.cat([-m.inner(x), m.inner(x)], 1), inner=inner)
    x = batch(3, 4)
    certificate = ad.certify(model, x, (inner(x)[:, 0] > 0).long(), ad.LinfBall(1e-6))
    assert bool(certificate.certified.all())


def test_the_good_call_is_good() -> None:
    call = good()
    ad.certify(call.model, call.x, call.labels, call.ball)
    ad.certified_radius(call.model, call.x, call.labels, call.ball)
    ad.attack(call.model, call.x, call.labels, call.ball)


def test_a_model_that_raises_at_a_corner_of_the_set_is_refused() -> None:
    def checked(m: Any, x: Tensor) -> Tensor:
        torch._assert_async((x.abs() < 3).all())
        return m.fc(x)

    model, x = Net(checked, fc=nn.Linear(4, 3)), torch.zeros(2, 4, dtype=torch.float64)
    assert ad.certify(model, x, torch.zeros(2).long(), ad.LinfBall(1.0)).reached is None
    with pytest.raises(ad.CaptureError, match="for x or for a corner of its set"):
        ad.certify(model, x, torch.zeros(2).long(), ad.LinfBall(5.0))
    with pytest.raises(ad.ArgumentError, match="raises RuntimeError for an input of the set"):
        ad.attack(model, x, model(x).argmax(1), ad.LinfBall(5.0))


def test_errors_are_also_what_python_programmers_expect() -> None:
    assert issubclass(ad.ArgumentError, ValueError)
    assert issubclass(ad.MemoryBudgetError, MemoryError)
    assert issubclass(ad.UnsoundError, TypeError)
    assert issubclass(ad.UnsupportedOperationError, ad.CaptureError)
