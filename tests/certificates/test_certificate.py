"""A certificate says what its documentation says, and nothing unproved is ever certified."""

import copy
import json
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import autodual as ad
from autodual.certificates.certificate import Subject
from small import DOUBLE, ENGINES, batch, mlp

NAN, INF = float("nan"), float("inf")
every_engine = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())


def made(
    margins: list[float], slack: list[float] | None = None, predicted: int = 0, run_error: list[float] | None = None
) -> ad.Certificate:
    """A certificate of one example with label 0."""
    none = [0.0] * len(margins)
    return ad.Certificate(
        margins=torch.tensor([[INF, *margins]], dtype=DOUBLE),
        slack=torch.tensor([[0.0, *(slack or none)]], dtype=DOUBLE),
        run_error=torch.tensor([[0.0, *(run_error or none)]], dtype=DOUBLE),
        output=torch.eye(3, dtype=DOUBLE)[[predicted]],
        question=ad.Label(torch.tensor([0])).put(torch.zeros(1, 1), (3,)),
        where="at l-infinity 0.1",
        subject=Subject.of(
            "network", "inputs", ad.LinfBall(0.1), ad.Dual(), torch.zeros(1, dtype=DOUBLE), ad.Label([0])
        ),
    )


@every_engine
def test_fields_have_the_documented_shapes_and_types(engine: ad.BoundEngine) -> None:
    model, x, labels = mlp(6, 8, 4), batch(5, 6), torch.tensor([0, 1, 2, 3, 0], dtype=torch.int32)
    certificate = ad.certify(model, x, labels, ad.LinfBall(0.05), engine)
    own = torch.nn.functional.one_hot(labels.long(), 4).bool()
    assert certificate.margins.shape == certificate.slack.shape == (5, 4)
    assert certificate.margins.dtype == certificate.slack.dtype == DOUBLE
    assert (certificate.margins[own] == INF).all()
    assert certificate.margins[~own].isfinite().all()
    assert (certificate.slack[own] == 0).all()
    assert (certificate.slack[~own] > 0).all()
    assert certificate.certified.shape == (5,)
    assert certificate.certified.dtype == torch.bool
    assert torch.equal(certificate.predicted, model(x).argmax(1))
    assert certificate.labels.tolist() == labels.tolist()
    assert not certificate.margins.requires_grad
    assert certificate.engine == repr(engine)
    assert certificate.perturbation == "LinfBall(eps=0.05, clip=None)"


@every_engine
def test_margins_are_bounds_on_differences_of_scores(engine: ad.BoundEngine) -> None:
    model, x, labels = mlp(6, 8, 4), batch(5, 6), torch.tensor([0, 1, 2, 3, 0])
    region = ad.L2Ball(0.3).around(x)
    margins = ad.certify(model, x, labels, ad.L2Ball(0.3), engine).margins
    others = margins.isfinite()
    for _ in range(100):
        scores = model(region.sample())
        assert (margins <= scores.gather(1, labels.unsqueeze(1)) - scores + 1e-9)[others].all()


def test_without_perturbation_margins_are_the_differences() -> None:
    model, x, labels = mlp(6, 8, 4), batch(5, 6), torch.tensor([0, 1, 2, 3, 0])
    certificate = ad.certify(model, x, labels, ad.LinfBall(0.0))
    scores = model(x)
    others = certificate.margins.isfinite()
    differences = scores.gather(1, labels.unsqueeze(1)) - scores
    torch.testing.assert_close(certificate.margins[others], differences[others])
    assert torch.equal(certificate.certified, scores.argmax(1) == labels)


def test_errors_are_fractions_of_the_examples() -> None:
    model, x = mlp(6, 8, 4), batch(8, 6)
    labels = model(x).argmax(1)
    labels[:2] = (labels[:2] + 1) % 4
    certificate = ad.certify(model, x, labels, ad.LinfBall(0.05))
    assert certificate.error == 2 / 8
    assert certificate.robust_error == pytest.approx(1 - certificate.certified.sum().item() / 8)
    assert certificate.robust_error >= certificate.error
    verdicts = certificate.verdicts
    assert verdicts[:2] == [ad.Verdict.WRONG] * 2
    assert [v is ad.Verdict.CERTIFIED for v in verdicts] == certificate.certified.tolist()
    assert all("attack" in v.value for v in verdicts if v is ad.Verdict.UNKNOWN)


@pytest.mark.parametrize(
    ("margins", "slack", "predicted", "certified"),
    [
        pytest.param([1.0, 2.0], [0.0, 0.0], 0, True, id="all above zero"),
        pytest.param([1.0, 0.0], [0.0, 0.0], 0, False, id="a tie"),
        pytest.param([1.0, -1.0], [0.0, 0.0], 0, False, id="one below"),
        pytest.param([1.0, 1e-6], [0.0, 1e-5], 0, False, id="within the rounding"),
        pytest.param([1.0, 1e-5], [0.0, 1e-5], 0, False, id="exactly the rounding"),
        pytest.param([1.0, 2e-5], [0.0, 1e-5], 0, True, id="above the rounding"),
        pytest.param([NAN, 1.0], [0.0, 0.0], 0, False, id="nan"),
        pytest.param([INF, 1.0], [0.0, 0.0], 0, False, id="infinite"),
        pytest.param([-INF, 1.0], [0.0, 0.0], 0, False, id="minus infinite"),
        pytest.param([1.0, 1.0], [NAN, 0.0], 0, False, id="nan slack"),
        pytest.param([1.0, 1.0], [INF, 0.0], 0, False, id="infinite slack"),
        pytest.param([1.0, 1.0], [-INF, 0.0], 0, False, id="minus infinite slack"),
        pytest.param([1.0, 2.0], [0.0, 0.0], 1, False, id="clean input wrong"),
    ],
)
def test_only_what_is_proved_is_certified(
    margins: list[float], slack: list[float], predicted: int, certified: bool
) -> None:
    certificate = made(margins, slack, predicted)
    assert certificate.certified.tolist() == certificate.certified_as_run.tolist() == [certified]


@pytest.mark.parametrize(
    ("slack", "run_error", "as_run"),
    [
        pytest.param(0.0, 0.0, True, id="no error"),
        pytest.param(0.0, 2.0, False, id="above the margin"),
        pytest.param(0.0, 1.0, False, id="a tie"),
        pytest.param(0.6, 0.6, False, id="together above the margin"),
        pytest.param(0.4, 0.4, True, id="together below the margin"),
        pytest.param(0.0, NAN, False, id="nan"),
        pytest.param(0.0, INF, False, id="infinite"),
        pytest.param(0.0, -INF, False, id="minus infinite"),
    ],
)
def test_as_run_needs_room_for_both_errors(slack: float, run_error: float, as_run: bool) -> None:
    certificate = made([1.0, 3.0], [slack, 0.0], run_error=[run_error, 0.0])
    assert certificate.certified.tolist() == [True]
    assert certificate.certified_as_run.tolist() == [as_run]
    assert certificate.robust_error_as_run == float(not as_run)


@pytest.mark.parametrize("margins", [[1.0, 2.0], [NAN, 1.0], [INF, -INF]])
def test_json_has_null_for_what_is_no_number(margins: list[float]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    certificate = made(margins)
    record = json.loads(certificate.to_json(), parse_constant=refuse)
    assert record["margins"] == [[None, *(m if math.isfinite(m) else None for m in margins)]]
    assert record["certified"] == certificate.certified.tolist()
    assert record["robust_error"] == certificate.robust_error


def test_json_says_everything() -> None:
    model, x, labels = mlp(6, 8, 4), batch(5, 6), torch.tensor([0, 1, 2, 3, 0])
    certificate = ad.certify(model, x, labels, ad.LinfBall(0.05, clip=(0.0, 1.0)), ad.Crown())
    record = json.loads(certificate.to_json())
    assert record["examples"] == 5
    assert record["dtype"] == "float64"
    assert record["labels"] == labels.tolist()
    assert record["predicted"] == certificate.predicted.tolist()
    assert record["error"] == certificate.error
    assert record["engine"].startswith("Crown(")
    assert record["perturbation"] == "LinfBall(eps=0.05, clip=(0.0, 1.0))"
    assert torch.tensor(record["slack"], dtype=DOUBLE).equal(certificate.slack)


@pytest.mark.parametrize(
    ("eps", "said"),
    [
        pytest.param(torch.tensor(0.05), "eps=0.05", id="scalar"),
        pytest.param(torch.tensor([0.01, 0.02, 0.03]), "eps=0.01..0.03", id="per example"),
    ],
)
def test_a_tensor_of_eps_is_summarised(eps: Tensor, said: str) -> None:
    model, x = mlp(6, 8, 4), batch(3, 6)
    assert said in ad.certify(model, x, model(x).argmax(1), ad.LinfBall(eps)).perturbation


@pytest.mark.parametrize(("eps", "said"), [(1e-50, "1e-50"), (-0.0, "0"), (2 / 255, "2/255"), (1, "1")])
def test_eps_is_told_as_it_was_given(eps: float, said: str) -> None:
    model, x = mlp(6, 8, 4), batch(3, 6)
    assert f" at l-infinity {said} by " in str(ad.certify(model, x, model(x).argmax(1), ad.LinfBall(eps)))


def test_a_captured_network_gives_the_same_certificate() -> None:
    model, x, labels = mlp(6, 8, 4), batch(5, 6), torch.tensor([0, 1, 2, 3, 0])
    network = ad.capture(model, x[:1])
    assert torch.equal(
        ad.certify(network, x, labels, ad.LinfBall(0.05)).margins,
        ad.certify(model, x, labels, ad.LinfBall(0.05)).margins,
    )


def test_single_precision_needs_more_slack() -> None:
    x, labels = batch(5, 6), torch.tensor([0, 1, 2, 3, 0])
    double = ad.certify(mlp(6, 8, 4), x, labels, ad.LinfBall(0.05))
    single = ad.certify(mlp(6, 8, 4, dtype=torch.float32), x.float(), labels, ad.LinfBall(0.05))
    others = double.margins.isfinite()
    assert single.margins.dtype == torch.float32
    assert (single.slack[others] > 1e6 * double.slack[others]).all()
    error = (single.margins.double() - double.margins).abs()
    assert (error <= single.slack)[others].all()


def test_a_certificate_says_what_it_is_about() -> None:
    """Digests are the same for the same question, and change with weights, inputs, labels, ball, engine and settings."""
    x, labels, ball = batch(5, 6), torch.tensor([0, 1, 2, 3, 0]), ad.LinfBall(0.05)
    subject = ad.certify(mlp(6, 8, 4), x, labels, ball).subject
    assert ad.certify(mlp(6, 8, 4), x.clone(), labels.int(), ball).subject == subject
    assert ad.certify(ad.capture(mlp(6, 8, 4), x), x, labels, ball).subject == subject
    moved, other = mlp(6, 8, 4), x.clone()
    with torch.no_grad():
        moved[0].weight[0, 0] = torch.nextafter(moved[0].weight[0, 0], torch.tensor(INF, dtype=DOUBLE))
        other[4, 5] = torch.nextafter(other[4, 5], torch.tensor(INF, dtype=DOUBLE))
    bent = torch.nn.Sequential(mlp(6, 8, 4)[0], torch.nn.LeakyReLU(0.0), mlp(6, 8, 4)[2]).eval()
    about = {
        "weights": ad.certify(moved, x, labels, ball).subject,
        "operations": ad.certify(bent, x, labels, ball).subject,
        "inputs": ad.certify(mlp(6, 8, 4), other, labels, ball).subject,
        "labels": ad.certify(mlp(6, 8, 4), x, labels.flip(0), ball).subject,
        "size": ad.certify(mlp(6, 8, 4), x, labels, ad.LinfBall(0.06)).subject,
        "norm": ad.certify(mlp(6, 8, 4), x, labels, ad.L2Ball(0.05)).subject,
        "engine": ad.certify(mlp(6, 8, 4), x, labels, ball, ad.Crown()).subject,
        "settings": ad.certify(mlp(6, 8, 4), x, labels, ball, ad.Dual(intersect=True)).subject,
        "dtype": ad.certify(mlp(6, 8, 4).float(), x.float(), labels, ball).subject,
    }
    assert len({subject, *about.values()}) == 1 + len(about)
    assert about["weights"].inputs == about["engine"].inputs == subject.inputs
    assert about["inputs"].network == about["size"].network == about["engine"].network == subject.network
    assert subject.network not in (about["weights"].network, about["operations"].network)


class Heard(ad.Perturbation):
    """Holds what its name does not show."""

    def __init__(self, radius: float) -> None:
        self.eps, self.radius = 0.0, torch.full((3, 6), radius, dtype=DOUBLE)

    def around(self, x: Tensor) -> ad.Box:
        return ad.Box(x - self.radius[: len(x)], x + self.radius[: len(x)])

    def with_eps(self, eps: float | Tensor) -> ad.Perturbation:
        return self


@dataclass(frozen=True)
class Shown(ad.Perturbation):
    """Shows its first and last numbers only."""

    radius: Tensor
    eps: float = 0.0

    def around(self, x: Tensor) -> ad.Box:
        return ad.Box(x - self.radius.flatten()[:6], x + self.radius.flatten()[:6])

    def with_eps(self, eps: float | Tensor) -> ad.Perturbation:
        return self


def radii(middle: float) -> Tensor:
    values = torch.zeros(50, 50, dtype=DOUBLE)
    values[25, 25] = middle
    return values


def eps_of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


SETS: dict[str, tuple[ad.Perturbation, ad.Perturbation]] = {
    "eps of other examples": (ad.LinfBall(eps_of(0.1, 0.2, 0.1)[:, None]), ad.LinfBall(eps_of(0.1, 0.1, 0.2)[:, None])),
    "eps of other features": (ad.LinfBall(eps_of(0, 1, 0, 0, 0, 0)[None]), ad.LinfBall(eps_of(0, 0, 1, 0, 0, 0)[None])),
    "one eps, far behind the point": (ad.L2Ball(eps_of(0.01)), ad.L2Ball(eps_of(0.0100000001))),
    "l1, per example": (ad.L1Ball(eps_of(0.1, 0.2, 0.3)), ad.L1Ball(eps_of(0.1, 0.25, 0.3))),
    "clip as tensors": (
        ad.LinfBall(0.1, clip=(torch.tensor(-9.0), torch.tensor(9.00001))),
        ad.LinfBall(0.1, clip=(torch.tensor(-9.0), torch.tensor(9.00002))),
    ),
    "a class without a name for what it holds": (Heard(0.1), Heard(0.2)),
    "a class that shows a part of what it holds": (Shown(radii(0.1)), Shown(radii(0.2))),
}


@pytest.mark.parametrize("name", SETS)
def test_other_sets_are_other_subjects(name: str) -> None:
    model, x, labels = mlp(6, 8, 4), batch(3, 6), torch.tensor([0, 1, 2])
    one, other = (ad.certify(model, x, labels, ball).subject for ball in SETS[name])
    assert one.perturbation != other.perturbation
    assert ad.certify(model, x, labels, copy.deepcopy(SETS[name][0])).subject == one
