"""One Cauchy stream for all terms, or the paper's one stream per term: which estimates radii better, and at what cost?

    OMP_NUM_THREADS=1 python benchmarks/merged_against_per_term.py [NETWORK ...]

Networks: mnist_small, mnist_small_trained, mnist_large, cifar_small, cifar_resnet; all of them when none is named. Results of
networks that are not named are kept from the last run; "estimators" compares estimators, "show" only writes the tables again.

*Estimates.* The bands of all layers are held at the exact engine's (see frozen.py), so what varies is one layer's estimate alone. Per
layer: the mean over units and draws of estimate / exact - 1 (bias), and the root mean square over draws about a unit's mean (spread).
The first activation is left out: its radius is exact without projections.

*Cost.* Vectors that enter the activations (k for a merged stream, k times the number of terms else, the first activation left
out), and CPU seconds of `Projected(k, merged).preactivations` with gradients recorded, one thread. All settings take turns, so that
whatever else the machine does meets all of them; medians count. Compared at equal k, at equal vectors, and at about equal seconds.

*Margins.* The whole engine, estimated bands and all: how far the smallest margin is from that of `Dual()`.

Writes benchmarks/results/merged_against_per_term.md and .json.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from frozen import SEED, Case, Frozen, estimate_errors, small_mnist
from machine import RESULTS, describe
from stream_tables import FORMS, KS, MARGIN_KS, REFERENCE_K, show
from torch import Tensor

import autodual as ad
from autodual.spec import margins

LADDER = (50, 64, 80, 100, 128, 160, 200)
"""Where the k of about equal seconds is sought."""
CIFAR_EPS = 2 / 255 / 0.225
"""2/255 in pixels; the images are normalised."""

CASES = {
    "mnist_small": small_mnist(4, trained=False),
    "mnist_small_trained": small_mnist(4, trained=True),
    "mnist_large": Case("MNIST large, random", lambda: ad.models.large(1, 28), "mnist", 0.1, 2),
    "cifar_small": Case("CIFAR small, random", lambda: ad.models.small(3, 32), "cifar_small_8px", CIFAR_EPS, 4),
    "cifar_resnet": Case("CIFAR ResNet, random", ad.models.resnet, "cifar_small_8px", CIFAR_EPS, 1),
}


@dataclass(frozen=True)
class Effort:
    """How much is measured: passes of so many projections, rounds of timing, draws for the margins."""

    passes: int
    projections: int
    rounds: int
    margin_draws: int


SMALL = Effort(24, 500, 11, 60)
EFFORTS = {"mnist_large": Effort(12, 400, 5, 20), "cifar_resnet": Effort(14, 300, 3, 16)}
"""Of the larger networks."""


def terms(frozen: Frozen) -> dict[int, int]:
    """Streams that enter each activation in the per-term form."""
    with torch.no_grad():
        return {i: len(s) for i, s in frozen.entering(1, False, torch.Generator().manual_seed(SEED))}


def time_engines(engines: list[ad.Projected], frozen: Frozen, rounds: int) -> list[float]:
    """CPU seconds per example of each engine's forward pass, with gradients recorded."""
    found: list[list[float]] = [[] for _ in engines]
    for _ in range(rounds + 1):  # the first one warms up
        for engine, times in zip(engines, found, strict=True):
            start = time.process_time()
            engine.preactivations(frozen.network, frozen.region)
            times.append(time.process_time() - start)
    return [statistics.median(times[1:]) / len(frozen.region) for times in found]


def time_forms(frozen: Frozen, equal_vectors_k: int, rounds: int) -> dict[str, dict[int, float]]:
    """Seconds by form and k; the merged form also up the ladder on which the k of equal seconds is sought."""
    settings = [("merged", k) for k in sorted({*MARGIN_KS, *LADDER, equal_vectors_k})]
    settings += [("per term", k) for k in MARGIN_KS]
    found = time_engines([ad.Projected(k, FORMS[form]) for form, k in settings], frozen, rounds)
    seconds: dict[str, dict[int, float]] = {form: {} for form in FORMS}
    for (form, k), value in zip(settings, found, strict=True):
        seconds[form][k] = value
    return seconds


def equal_seconds(seconds: dict[str, dict[int, float]]) -> int:
    """The largest k on the ladder for which the merged form takes no longer than the per-term form with 50."""
    limit = seconds["per term"][REFERENCE_K]
    return max((k for k in LADDER if seconds["merged"][k] <= limit), default=LADDER[0])


def smallest_margins(engine: ad.BoundEngine, frozen: Frozen, labels: Tensor) -> Tensor:
    """[N]: over all targets but the label."""
    return all_margins(engine, frozen, labels).amin(1)


def all_margins(engine: ad.BoundEngine, frozen: Frozen, labels: Tensor) -> Tensor:
    spec = margins(labels, math.prod(frozen.network.nodes[frozen.network.output].shape), frozen.region.centre.dtype)
    lower = engine.minimum(frozen.network, frozen.region, spec).lower
    return lower.masked_fill(torch.nn.functional.one_hot(labels, lower.shape[1]).bool(), math.inf)


def compare_margins(case: Case, frozen: Frozen, draws: int, more_ks: tuple[int, ...]) -> dict[str, Any]:
    """|smallest margin - Dual()'s| in two units: what the perturbation costs under Dual(), and the spread of Dual()'s margins."""
    with torch.no_grad():
        logits = case.model()(case.images())
        labels = logits.argmax(1)
        exact_all = all_margins(ad.Dual(), frozen, labels)
        exact = exact_all.amin(1)
        best = logits.topk(2, 1).values
        loss = float((best[:, 0] - best[:, 1] - exact).mean())
        spread = float(exact_all[exact_all.isfinite()].std())
        forms: dict[str, dict[int, dict[str, float]]] = {}
        for name, merged in FORMS.items():
            forms[name] = {}
            for k in [*MARGIN_KS, *more_ks] if merged else MARGIN_KS:
                generator = torch.Generator().manual_seed(SEED)
                engine = ad.Projected(k, merged, generator=generator)
                errors = torch.stack([smallest_margins(engine, frozen, labels) - exact for _ in range(draws)])
                size, signed = float(errors.abs().mean()), float(errors.mean())
                forms[name][k] = {
                    "of_loss": size / loss,
                    "size_error": float(errors.abs().mean(1).std()) / math.sqrt(draws) / loss,
                    "of_loss_signed": signed / loss,
                    "signed_error": float(errors.mean(1).std()) / math.sqrt(draws) / loss,
                    "of_spread": size / spread,
                }
    return {"exact": float(exact.mean()), "loss": loss, "spread": spread, "draws": draws, "forms": forms}


def measure(name: str) -> dict[str, Any]:
    case, frozen, effort = CASES[name], Frozen.of(CASES[name]), EFFORTS.get(name, SMALL)
    counts = terms(frozen)
    vectors_k = round(REFERENCE_K * statistics.mean(counts.values()))
    seconds = time_forms(frozen, vectors_k, effort.rounds)
    seconds_k = equal_seconds(seconds)
    errors = {}
    for form, merged in FORMS.items():
        ks = sorted({*KS, vectors_k, seconds_k} if merged else KS)
        found = estimate_errors(frozen, merged, [(k, ad.Median()) for k in ks], effort.projections, effort.passes)
        errors[form] = {k: list(layers.values()) for (k, _), layers in found.items()}
    nodes = frozen.network.nodes
    return {
        "title": case.title,
        "eps": case.eps,
        "examples": case.examples,
        "machine": describe(),
        "layers": [
            {
                "name": nodes[i].name,
                "units": math.prod(nodes[i].shape),
                "terms": counts[i],
                "exact_radius": float(frozen.radii[i].mean()),
            }
            for i in frozen.estimated
        ],
        "equal_vectors_k": vectors_k,
        "equal_seconds_k": seconds_k,
        "seconds": seconds,
        "errors": errors,
        "margins": compare_margins(case, frozen, effort.margin_draws, (vectors_k, seconds_k)),
    }


def measure_estimators() -> dict[str, Any]:
    """Median, geometric mean and maximum likelihood, k = 50, merged, on the small MNIST network."""
    kinds = (ad.Median(), ad.GeometricMean(), ad.MaximumLikelihood())
    record: dict[str, Any] = {"machine": describe()}
    for name in ("mnist_small", "mnist_small_trained"):
        frozen = Frozen.of(CASES[name])
        found = estimate_errors(frozen, True, [(REFERENCE_K, e) for e in kinds], SMALL.projections, SMALL.passes)
        seconds = time_engines([ad.Projected(REFERENCE_K, estimator=e) for e in kinds], frozen, SMALL.rounds)
        record[name] = {
            type(e).__name__: {"layers": list(found[REFERENCE_K, e].values()), "seconds": taken}
            for e, taken in zip(kinds, seconds, strict=True)
        }
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "networks", nargs="*", metavar="NETWORK", help=f"some of {', '.join(CASES)}, estimators; or show"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "merged_against_per_term.json"
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"networks": {}}
    wanted = options.networks or [*CASES, "estimators"]
    for name in wanted:
        if name in CASES:
            record["networks"][name] = measure(name)
        elif name == "estimators":
            record["estimators"] = measure_estimators()
        elif name != "show":
            sys.exit(f"no network {name!r}; there are {', '.join(CASES)}")
        print(f"{name}: done", flush=True)
        record["networks"] = {n: record["networks"][n] for n in CASES if n in record["networks"]}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if "estimators" not in record or len(record["networks"]) < len(CASES):
        sys.exit("kept; the tables follow when everything has been measured")
    record = json.loads(path.read_text(encoding="utf-8"))  # as it was written: numbers as keys have become text
    (RESULTS / "merged_against_per_term.md").write_text(show(record), encoding="utf-8")


if __name__ == "__main__":
    main()
