"""Any number of threads certify, attack, train and run models at once: no failure, and every number as in one thread."""

import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import autodual as ad
from autodual._tensor import full_precision, tf32_convolutions
from many_threads import PYTORCHS, hammer
from small import batch, mlp

SECONDS = float(os.environ.get("AUTODUAL_THREAD_SECONDS", "3"))


def test_eight_threads_do_everything_at_once() -> None:
    tally = hammer(SECONDS)
    assert tally.clean, (tally.different, tally.failures[:5], tally.patched)
    assert len(tally.done) == 7, "every kind of work has its turn"
    assert tally.looks > 10
    assert (nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__) == PYTORCHS


class Waits(nn.Module):
    """While it is traced, or run, another thread has its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.seen = mlp(4, 5, 3), [0]

    def forward(self, x: Any) -> Any:
        self.last = self.body(x)
        self.seen.append(len(self.seen))
        ASKED.put(True)
        RESULTS.append(ANSWERS.get(timeout=60))
        return self.last


ASKED, ANSWERS = queue.Queue[bool](), queue.Queue[Any]()
RESULTS: list[Any] = []
LABELS, BALL, X = torch.tensor([0, 1]), ad.LinfBall(0.01), batch(2, 4)

MEANWHILE: dict[str, Callable[[nn.Module], Any]] = {
    "another model runs": lambda m: mlp(4, 5, 3)(X),
    "a part of the same model runs": lambda m: m.get_submodule("body")(X),
    "another model is certified": lambda m: ad.certify(mlp(4, 5, 3), X, LABELS, BALL).margins,
    "a part of the same model is certified": lambda m: ad.certify(m.get_submodule("body"), X, LABELS, BALL).margins,
    "attributes of the model": lambda m: (type(m.last), m.seen[:2], m.get_submodule("body")[0].weight),
    "methods of nn.Module": lambda m: (nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__) == PYTORCHS,
}


@pytest.mark.parametrize("meanwhile", MEANWHILE.values(), ids=MEANWHILE.keys())
def test_in_the_middle_of_a_capture_another_thread_notices_nothing(meanwhile: Callable[[nn.Module], Any]) -> None:
    model = Waits().eval()

    def answer() -> None:
        while ASKED.get():
            try:
                ANSWERS.put(meanwhile(model))
            except Exception as error:
                ANSWERS.put(error)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        RESULTS.clear()
        model(X)
        alone, kept = RESULTS.pop(), model.seen[:]
        ad.capture(model, X)
    finally:
        ASKED.put(False)
        thread.join()
    assert RESULTS, "the model was traced"
    assert model.seen == kept
    for found in RESULTS:
        for one, other in zip(_parts(alone), _parts(found), strict=True):
            assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.fixture
def tf32() -> Iterator[None]:
    """TF32 allowed, as many training scripts set it."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def _flags() -> tuple[bool, bool]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.mark.usefixtures("tf32")
def test_one_threads_exit_does_not_switch_tf32_on_inside_another() -> None:
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with full_precision():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    with full_precision():
        leave.set()
        thread.join()
        assert _flags() == (False, False)
    assert _flags() == (True, True)


@pytest.mark.usefixtures("tf32")
def test_threads_that_come_and_go_never_see_tf32_inside() -> None:
    lax = list[Any]()

    def come_and_go() -> None:
        for _ in range(60):
            with full_precision():
                if _flags() != (False, False) or tf32_convolutions():
                    lax.append(_flags())
                with full_precision():
                    pass
                if _flags() != (False, False):
                    lax.append(_flags())

    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not lax
    assert _flags() == (True, True)


def _inside(act: Callable[[], Any]) -> None:
    with full_precision():
        act()


def test_tf32_that_is_switched_on_in_between_is_neither_lost_nor_certified_with() -> None:
    assert _flags()[0] is False, "as PyTorch comes"
    entered, switched, refused = threading.Event(), threading.Event(), threading.Event()

    def other() -> None:
        with pytest.raises(ad.UnsoundError, match="compute them again"):
            _inside(lambda: (entered.set(), switched.wait(10)))
        refused.set()

    def act() -> None:
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(10)
        torch.backends.cuda.matmul.allow_tf32 = True
        with full_precision():  # one that enters now is strict, and not to blame
            assert _flags()[0] is False
        switched.set()
        thread.join()
        assert refused.is_set()
        assert _flags()[0] is False, "still inside"

    try:
        with pytest.raises(ad.UnsoundError, match="switched on while bounds were computed"):
            _inside(act)
        assert torch.backends.cuda.matmul.allow_tf32 is True, "as was wished"
        _inside(lambda: None)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_an_error_inside_is_not_hidden_by_the_precision() -> None:
    def act() -> None:
        torch.backends.cuda.matmul.allow_tf32 = True
        raise KeyError

    with pytest.raises(KeyError):
        _inside(act)
    assert torch.backends.cuda.matmul.allow_tf32 is True
    torch.backends.cuda.matmul.allow_tf32 = False
