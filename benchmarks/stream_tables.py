"""The record of merged_against_per_term.py as Markdown."""

from __future__ import annotations

import math
import statistics
from typing import Any

KS = (10, 50, 100)
MARGIN_KS = (10, 20, 50, 100)
REFERENCE_K = 50
FORMS = {"merged": True, "per term": False}
MARGIN_LIMIT = 0.1
SPREAD_LIMIT = 0.25


def percent(value: float, digits: int = 0) -> str:
    return f"{100 * value:+.{digits}f}".replace("+0.0", "0.0").replace("-0.0", "0.0")


def cell(error: dict[str, float]) -> str:
    return f"{percent(error['bias'], 1)} / {100 * error['spread']:.0f}"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["", *(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)), ""]


def worst(errors: list[dict[str, float]]) -> float:
    return max(e["spread"] for e in errors)


def average(errors: list[dict[str, float]]) -> float:
    return math.sqrt(statistics.mean(e["spread"] ** 2 for e in errors))


def show_network(row: dict[str, Any]) -> list[str]:
    layers, errors = row["layers"], row["errors"]
    columns = [(form, k) for k in map(str, KS) for form in FORMS]
    columns += [("merged", str(row["equal_vectors_k"])), ("merged", str(row["equal_seconds_k"]))]
    header = ["what enters", "units", "terms", "exact radius", *(f"{form} {k}" for form, k in columns)]
    header[-2] += " (equal vectors)"
    header[-1] += " (equal seconds)"
    body = [
        [
            layer["name"],
            f"{layer['units']:,}",
            str(layer["terms"]),
            f"{layer['exact_radius']:.3g}",
            *(cell(errors[form][k][place]) for form, k in columns),
        ]
        for place, layer in enumerate(layers)
    ]
    vectors = {"merged": len(layers), "per term": sum(layer["terms"] for layer in layers)}
    body.append(["**vectors**", "", "", "", *(f"{int(k) * vectors[form]:,}" for form, k in columns)])
    body.append(["**ms per example**", "", "", "", *(f"{1000 * row['seconds'][form][k]:.1f}" for form, k in columns)])
    machine, draws = row["machine"], errors["merged"][str(REFERENCE_K)][0]["estimates"]
    return [
        f"## {row['title']}",
        "",
        f"l-infinity {row['eps']:.4g}, {row['examples']} examples, {draws} independent estimates per unit at k = {REFERENCE_K} "
        f"(in proportion at other k). Commit {machine['commit']}, source {machine['source']}, load {machine['load_average']}.",
        *table(header, body),
    ]


def show_summary(networks: dict[str, Any]) -> list[str]:
    """Spreads of the per-term form with 50 beside merged ones of the same cost, root mean square over layers and worst layer."""
    rows = []
    for row in networks.values():
        merged, reference = row["errors"]["merged"], row["errors"]["per term"][str(REFERENCE_K)]
        gain = [a["spread"] ** 2 / b["spread"] ** 2 for a, b in zip(merged[str(REFERENCE_K)], reference, strict=True)]
        ks = [str(REFERENCE_K), str(row["equal_vectors_k"]), str(row["equal_seconds_k"])]
        rows.append(
            [
                row["title"],
                f"{len(row['layers'])}",
                f"{100 * average(reference):.0f} / {100 * worst(reference):.0f}",
                *(f"{100 * average(merged[k]):.0f} / {100 * worst(merged[k]):.0f} (k = {k})" for k in ks),
                f"{min(gain):.1f} to {max(gain):.1f}",
                f"{row['seconds']['per term'][str(REFERENCE_K)] / row['seconds']['merged'][str(REFERENCE_K)]:.1f}",
            ]
        )
    header = [
        "",
        "layers estimated",
        "per term, k = 50",
        "merged, equal k",
        "merged, equal vectors",
        "merged, equal seconds",
    ]
    header += ["terms count as", "per term costs, at equal k, times"]
    return table(header, rows)


def wins(networks: dict[str, Any]) -> list[str]:
    """Where the per-term form with 50 has the smaller spread, layer by layer."""
    lines = []
    for row in networks.values():
        reference = row["errors"]["per term"][str(REFERENCE_K)]
        parts = []
        for what in ("vectors", "seconds"):
            found = row["errors"]["merged"][str(row[f"equal_{what}_k"])]
            names = [
                f"{layer['name']} ({100 * b['spread']:.1f} against {100 * a['spread']:.1f})"
                for layer, a, b in zip(row["layers"], found, reference, strict=True)
                if b["spread"] < a["spread"]
            ]
            parts.append(
                f"at equal {what} in {len(names)} of {len(reference)} layers"
                + (f": {', '.join(names)}" if names else "")
            )
        lines.append(f"- {row['title']}: {'; '.join(parts)}.")
    return lines


def show_estimators(record: dict[str, Any], networks: dict[str, Any]) -> list[str]:
    rows = []
    for name in ("mnist_small", "mnist_small_trained"):
        for kind, found in record[name].items():
            cells = [
                f"{percent(e['bias'], 1)} ± {100 * e['bias_error']:.1f} / {100 * e['spread']:.1f}"
                for e in found["layers"]
            ]
            rows.append([networks[name]["title"], kind, *cells, f"{1000 * found['seconds']:.2f}"])
    return table(["", "estimator", "what enters 3", "what enters 6", "engine, ms per example"], rows)


def show_margins(networks: dict[str, Any]) -> list[str]:
    rows = []
    for row in networks.values():
        m = row["margins"]
        for form in FORMS:
            cells = [
                f"{100 * v['of_loss']:.1f} ({percent(v['of_loss_signed'], 1)} ± {100 * v['signed_error']:.1f}; {v['of_spread']:.2f})"
                for v in (m["forms"][form][str(k)] for k in MARGIN_KS)
            ]
            rows.append([row["title"], f"{m['exact']:.3g}", f"{m['loss']:.3g}", form, *cells])
    return table(["", "Dual() margin", "loss", "form", *(f"k = {k}" for k in MARGIN_KS)], rows)


def show_margins_at_equal_cost(networks: dict[str, Any]) -> list[str]:
    rows = []
    for row in networks.values():
        merged, reference = row["margins"]["forms"]["merged"], row["margins"]["forms"]["per term"][str(REFERENCE_K)]
        ks = [str(row[f"equal_{what}_k"]) for what in ("vectors", "seconds")]
        sizes = [f"{100 * merged[k]['of_loss']:.1f} ± {100 * merged[k]['size_error']:.1f} (k = {k})" for k in ks]
        rows.append([row["title"], f"{100 * reference['of_loss']:.1f} ± {100 * reference['size_error']:.1f}", *sizes])
    return table(["", "per term, k = 50", "merged, equal vectors", "merged, equal seconds"], rows)


def smallest(found: dict[int, float], limit: float) -> int | None:
    return next((k for k in sorted(found) if found[k] <= limit), None)


def margin_k(row: dict[str, Any], form: str) -> int | None:
    """The smallest k whose margins are close enough to Dual()'s."""
    return smallest({int(k): v["of_loss"] for k, v in row["margins"]["forms"][form].items()}, MARGIN_LIMIT)


def recommend(networks: dict[str, Any]) -> list[str]:
    """The smallest k that was measured, and what it costs, by two rules."""
    rows = []
    for row in networks.values():
        for form in FORMS:
            by_spread = smallest({int(k): worst(e) for k, e in row["errors"][form].items()}, SPREAD_LIMIT)
            by_margin = margin_k(row, form)
            cost = "" if by_margin is None else f"{1000 * row['seconds'][form][str(by_margin)]:.1f}"
            rows.append([row["title"], form, str(by_spread), str(by_margin or f"more than {MARGIN_KS[-1]}"), cost])
    header = ["", "form", f"worst spread at most {100 * SPREAD_LIMIT:.0f} %"]
    header += [f"margin error at most {100 * MARGIN_LIMIT:.0f} % of the loss", "ms per example at that"]
    return table(header, rows)


def verdict(networks: dict[str, Any]) -> list[str]:
    """What the numbers say, with the numbers."""
    costs, gains, layers, won = [], [], 0, {"vectors": 0, "seconds": 0}
    for row in networks.values():
        merged, reference = row["errors"]["merged"], row["errors"]["per term"][str(REFERENCE_K)]
        costs.append(row["seconds"]["per term"][str(REFERENCE_K)] / row["seconds"]["merged"][str(REFERENCE_K)])
        gains += [(a["spread"] / b["spread"]) ** 2 for a, b in zip(merged[str(REFERENCE_K)], reference, strict=True)]
        layers += len(reference)
        for what in won:
            found = merged[str(row[f"equal_{what}_k"])]
            won[what] += sum(b["spread"] < a["spread"] for a, b in zip(found, reference, strict=True))
    wanted = "; ".join(f"{r['title']} {margin_k(r, 'merged') or 'more than was measured'}" for r in networks.values())
    beyond = [r["seconds"]["merged"]["160"] / r["seconds"]["merged"]["128"] for r in networks.values()]
    return [
        f"**Where the per-term form wins.** At equal k, everywhere: its variance is that of {min(gains):.1f} to {max(gains):.1f} "
        f"times as many projections, for {min(costs):.1f} to {max(costs):.1f} times the seconds. At equal vectors it has the smaller "
        f"spread in {won['vectors']} of {layers} layers, at equal seconds in {won['seconds']}. Many terms help it less than their "
        "number suggests, because they are unequal. Its bias is the same, since means add.",
        "",
        f"**Default.** Merged. One stream's spread does not depend on the network, so a rule on spread picks the same k for all: "
        f"{REFERENCE_K} keeps it under {100 * SPREAD_LIMIT:.0f} % in every layer. Margins within {100 * MARGIN_LIMIT:.0f} % of the "
        f"loss take, of the k that were measured: {wanted}. Untrained networks are the hard case: nearly all units of their later "
        "layers are unstable, and errors add up from layer to layer.",
        "",
        "**Equal vectors are not equal seconds.** The merged form then carries more vectors through the early, wide layers, and draws "
        "and sorts more numbers per unit. On this CPU "
        f"k = 160 costs {min(beyond):.2f} to {max(beyond):.2f} times as much as k = 128, where 1.25 would be in proportion.",
    ]


def show_shared(networks: dict[str, Any]) -> list[str]:
    rows = []
    for row in networks.values():
        cells = [f"{100 * row['errors'][form][str(REFERENCE_K)][p]['shared']:.1f}" for form in FORMS for p in (0, -1)]
        rows.append([row["title"], *cells])
    return table(["", *(f"{form}, {place}" for form in FORMS for place in ("first", "last"))], rows)


def show(record: dict[str, Any]) -> str:
    networks, machine = record["networks"], next(iter(record["networks"].values()))["machine"]
    lines = [
        "# One merged stream against one stream per term",
        "",
        "`OMP_NUM_THREADS=1 python benchmarks/merged_against_per_term.py`",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, one thread; Python {machine['python']}, torch {machine['torch']}. "
        "Where the load was above 1 the machine was shared: CPU times of separate runs then differ by up to 1.6, ratios within a run "
        "by much less.",
        "",
        "Cells read *bias / spread* in per cent of the exact radius; exact bands before each layer, estimator `Median()`. "
        "Theory for one stream: "
        + ", ".join(f"spread {157 / math.sqrt(k):.0f} at k = {k}" for k in KS)
        + ", whatever the terms; T equal terms with a stream each divide it by sqrt(T).",
        "",
        "## In short",
        "",
        "Spreads in per cent: root mean square over the layers / worst layer. *Terms count as*: how many equal terms the "
        "per-term form's gain in variance at equal k corresponds to, over the layers.",
        *show_summary(networks),
        "The per-term form with 50 has the smaller spread:",
        "",
        *wins(networks),
        "",
    ]
    for row in networks.values():
        lines += show_network(row)
    lines += [
        "## Estimators",
        "",
        f"Merged, k = {REFERENCE_K}: bias ± its standard error / spread, per cent.",
        *show_estimators(record["estimators"], networks),
        "## Errors are shared within a layer",
        "",
        "A large random number meets many units at once, so part of the error is common to all units of a layer and does not "
        "average out in a loss. Standard deviation of the layer's mean error over draws, per cent, "
        f"k = {REFERENCE_K}, first and last estimated layer:",
        *show_shared(networks),
        "## Margins of the whole engine",
        "",
        "Distance of the smallest margin from Dual()'s, mean over examples and draws, in per cent of the *loss*: the smallest "
        "margin at the image less the one that Dual() proves. In brackets the same with its sign (positive: the estimate is too good) "
        "± its standard error, and the size in "
        "standard deviations of Dual()'s margins over examples and targets.",
        *show_margins(networks),
        "The same size ± its standard error where the costs are equal:",
        *show_margins_at_equal_cost(networks),
        "## Which k",
        *recommend(networks),
        *verdict(networks),
        "",
    ]
    return "\n".join(lines)
