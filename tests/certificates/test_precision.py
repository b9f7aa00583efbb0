"""Certificates are computed in the precision they state, and the user's settings come back afterwards."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import autodual as ad
from small import batch, mlp

X, LABELS = batch(2, 4, dtype=torch.float32), torch.tensor([0, 1])


def _model() -> torch.nn.Sequential:
    return mlp(4, 16, 3, dtype=torch.float32)


CALLS: dict[str, Callable[[Any], Any]] = {
    "certify": lambda m: ad.certify(m, X, LABELS, ad.LinfBall(0.01)),
    "bounds": lambda m: ad.bounds(m, ad.LinfBall(0.01).around(X)),
    "certified_radius": lambda m: ad.certified_radius(m, X, LABELS, ad.LinfBall(0.01)),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@pytest.fixture(params=[True, False], ids=["tf32", "no tf32"])
def tf32(request: pytest.FixtureRequest) -> Iterator[bool]:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@every_call
def test_tf32_settings_come_back(call: Callable[[Any], Any], tf32: bool) -> None:
    call(_model())
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is tf32


@every_call
def test_tf32_settings_come_back_after_an_error(call: Callable[[Any], Any], tf32: bool) -> None:
    with pytest.raises(ad.UnsupportedOperationError):
        call(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(1)))
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is tf32


class Watcher(torch.nn.Module):
    """Notes the settings that it runs under."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _model()
        self.seen: list[tuple[bool, bool, bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        autocast = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        self.seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, autocast))
        return self.inner(x)


@every_call
def test_everything_runs_without_tf32_and_autocast(call: Callable[[Any], Any], tf32: bool) -> None:
    model = Watcher().eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call(model)
        assert torch.is_autocast_enabled("cpu")
    assert model.seen
    assert all(settings == (False, False, False) for settings in model.seen)
    assert not torch.is_autocast_enabled("cpu")


@every_call
def test_autocast_changes_no_number(call: Callable[[Any], Any]) -> None:
    plain = call(_model())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = call(_model())
    if isinstance(plain, ad.Certificate):
        plain, inside = plain.margins, inside.margins
    elif isinstance(plain, ad.Bounds):
        plain, inside = plain.output.lower, inside.output.lower
    assert torch.equal(plain, inside)


def test_gradient_mode_comes_back() -> None:
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            for call in CALLS.values():
                call(_model())
                assert torch.is_grad_enabled() is enabled


@every_call
def test_the_newer_tf32_switch_is_understood(call: Callable[[Any], Any]) -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        call(_model())
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


STATES = {
    "as it comes": "",
    "the newest switch": "b.fp32_precision = 'tf32'",
    "the newest switch and the old function": "b.fp32_precision = 'tf32'; torch.set_float32_matmul_precision('high')",
    "the newest switch after a certificate": "certify(); b.fp32_precision = 'tf32'",
    "cuDNN's own and an old one": "b.cudnn.fp32_precision = 'tf32'; b.cuda.matmul.allow_tf32 = True",
    "old ones": "b.cudnn.allow_tf32 = b.cuda.matmul.allow_tf32 = True",
}
START = """
import os, sys, torch, autodual as ad
from autodual._tensor import full_precision, tf32_convolutions
b = torch.backends
owners = [b.cuda.matmul, b.cudnn.conv, b.cudnn.rnn]
def certify():
    ad.certify(torch.nn.Linear(2, 2).eval(), torch.rand(1, 2), torch.tensor([0]), ad.LinfBall(0.1))
def lax():
    return [o.fp32_precision if o.fp32_precision not in ("none", "ieee") else "strict" for o in owners]
def products():
    return torch.get_float32_matmul_precision(), b.cuda.matmul.fp32_precision, b.mkldnn.matmul.fp32_precision
"""
SWITCHES = """
before = lax()
with full_precision():
    assert {o.fp32_precision for o in owners} <= {"none", "ieee"}, [o.fp32_precision for o in owners]
    if "none" in {o.fp32_precision for o in owners}:
        assert {b.fp32_precision, b.cudnn.fp32_precision} <= {"none", "ieee"}
    assert not tf32_convolutions()
assert lax() == before, (before, lax())
"""
PRODUCTS = """
before = products()
certify()
assert before == products(), (before, products())
"""


def run_apart(programs: dict[str, str]) -> None:
    """Each program in a process of its own, since some states cannot be left again; all are forks of one that knows PyTorch."""
    fork = f"""{START}
for name, program in {programs!r}.items():
    if os.fork() == 0:
        exec(program)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""
    found = subprocess.run([sys.executable, "-c", fork], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="this PyTorch has the older switches only")
def test_whatever_the_switches_say() -> None:
    run_apart({name: f"{state}\n{SWITCHES}" for name, state in STATES.items()})


def test_the_precision_of_products_comes_back() -> None:
    """PyTorch refuses to answer once its older and newer switches disagree."""
    kinds = ("highest", "high", "medium")
    run_apart({kind: f"torch.set_float32_matmul_precision({kind!r})\n{PRODUCTS}" for kind in kinds})
