"""The trials of `autodual bench`: training steps and exact certificates, ours and the authors', timed on this machine; as tables."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from autodual._files import load_tensors
from autodual.certificates import certify
from autodual.data import any_mean_std
from autodual.engines import Dual
from autodual.models import Normalize
from autodual.runs.checkpoint import load_model
from autodual.speed.measure import (
    COPY,
    FLOAT32,
    Measured,
    Peak,
    Stop,
    Work,
    ceilings,
    cpu_seconds_of_others,
    hottest,
    never,
    once,
    timed,
)
from autodual.speed.problems import (
    AUTHORS,
    FIRST,
    PROBLEMS,
    AuthorsSteps,
    OurSteps,
    PaperNetwork,
    authors_verdicts,
    kept_weights,
)
from autodual.training.loop import StoppedError
from autodual.training.setup import make_ball

AGREEMENT = 0.25
"""Relative difference of the two mean losses that is told. At k = 50, single ones of large untrained networks differ by 0.2."""
BUSY = 0.1
"""Cores that other processes may keep busy while a CPU is measured, before that is told."""


@dataclass
class Bench:
    """What was asked for, and what was found so far."""

    device: torch.device
    k: int
    batch: int
    seconds: float
    authors: bool = False
    float32: bool = False
    profiled: bool = False
    data_folder: Path | None = None
    say: Callable[[str], None] = lambda line: None
    stop: Stop = never
    record: dict[str, Any] = field(default_factory=lambda: {"networks": {}, "certificates": {}, "notes": []})

    def note(self, text: str) -> None:
        """Tells a sentence now, and keeps it for the end of the tables."""
        if text not in self.record["notes"]:
            self.record["notes"].append(text)
            self.say(text)

    def check(self) -> None:
        """Raises StoppedError if the user asked to stop; called between two parts of the work."""
        if self.stop():
            raise StoppedError("stopped as asked")

    @contextlib.contextmanager
    def room(self, what: str) -> Iterator[None]:
        """Ends this part alone where the GPU's memory does not suffice, with a note."""
        try:
            yield
        except torch.OutOfMemoryError:
            self.note(f"{what}: the GPU's memory does not suffice")
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def foreign(self, what: str) -> Iterator[None]:
        """Notes that the authors' code fails with this PyTorch, where it does; the rest goes on."""
        try:
            with self.room(f"{what}, the authors' code"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except StoppedError:
            raise
        except Exception as error:  # whatever code that is not ours may raise
            self.note(f"{what}: the authors' code fails here ({type(error).__name__}: {error})")

    @contextlib.contextmanager
    def watching_others(self) -> Iterator[None]:
        """Notes how busy others kept a CPU, which makes its times longer."""
        others, begin = cpu_seconds_of_others(), time.perf_counter()
        try:
            yield
        finally:
            spent, now = time.perf_counter() - begin, cpu_seconds_of_others()
            if others is not None and now is not None:
                self.record["cores_busy_elsewhere"] = busy = max(0.0, (now - others) / spent)
                if busy > BUSY and self.device.type == "cpu":
                    self.note(
                        f"other processes kept {busy:.1f} cores busy meanwhile: times on a quiet machine are shorter"
                    )

    def measure(self, chosen: list[str], usual: Sequence[str], weights: dict[str, Path] | None) -> None:
        """Times steps of the chosen networks, or of the `usual` ones; and, with weights, certificates of those that have some."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            self.say("the machine's own ceilings ...")
            self.record["ceilings"] = most = ceilings(self.device)
            rates = ", ".join(f"{name} {value / 1e12:.2f} TFLOP/s" for name, value in most.items() if name != COPY)
            self.say(f"  copy {most[COPY] / 1e9:,.0f} GB/s, {rates}")
            for name in chosen or usual:
                self.measure_step(PROBLEMS[name])
            if weights is None:
                return
            known = kept_weights() | weights
            for name in [*chosen, *(name for name in weights if name not in chosen)] if chosen else known:
                if name in known:
                    self.measure_certificates(PROBLEMS[name], known[name])
                else:
                    self.note(f"{name}: no weights to certify; name them with --weights {name}=FILE")
            if not chosen and not known:
                self.note("no weights to certify: results/ is not here; name some with --weights NETWORK=FILE")

    # A training step

    def measure_step(self, problem: PaperNetwork) -> None:
        """Fills one row, part by part, so that whoever is interrupted keeps what is there."""
        row: Measured = {"title": problem.title, "epoch": problem.epoch}
        self.check()
        self.record["networks"][problem.title] = row
        x, labels = self._images(problem, self.batch)
        if problem.config.normalise:  # as the network takes them
            x = Normalize(*any_mean_std(problem.config.dataset, x.shape[1])).to(self.device)(x)
        with self.room(problem.title):
            self._measure_ours(problem, row, x, labels)
        self.check()
        if self.float32 and self.device.type == "cuda":
            with self.room(f"{problem.title}, float32 streams"):
                steps = OurSteps.of(problem, self.k, x, labels, half=False)
                steps.first()
                row["seconds_per_step_float32"] = asdict(timed(steps, self.device, self.seconds, self.stop))
                self.say(f"{problem.title}: {in_ms(row['seconds_per_step_float32'])} ms/step with streams of float32")
                del steps
        self.check()
        if self.authors:
            with self.foreign(problem.title):
                self._measure_authors(problem, row, x, labels)

    def _images(self, problem: PaperNetwork, number: int, model: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """Images and labels on the device. Random images have the labels that the model gives them, where there is a model: others
        need no proof."""
        x, labels, missing = problem.images(number, self.data_folder)
        if missing is not None:
            self.say(missing)  # with places of this machine, which do not belong into a record
            self.note(f"{problem.config.dataset}: random images, since its test images were not found")
        x, labels = x.to(self.device), labels.to(self.device)
        if missing is not None and model is not None:
            with torch.no_grad():
                labels = model(x).argmax(1)
        return x, labels

    def _measure_ours(self, problem: PaperNetwork, row: Measured, x: Tensor, labels: Tensor) -> None:
        peak, steps = Peak(self.device), OurSteps.of(problem, self.k, x, labels)
        row["first_seconds"], row["loss"] = steps.first()
        self.say(f"{problem.title}: first {FIRST} steps {row['first_seconds']:.1f} s")
        row["seconds_per_step"] = asdict(timed(steps, self.device, self.seconds, self.stop))
        row["peak_bytes"] = peak.bytes()
        self.say(f"{problem.title}: {in_ms(row['seconds_per_step'])} ms/step")
        if self.profiled:
            row["profile"] = {}
            if self.device.type == "cuda":
                row["profile"]["kernels"] = hottest(steps, self.device, "kernels")
        plain = steps.plain()
        del steps
        row |= achieved(plain.counted(), row["seconds_per_step"]["median"], self.record.get("ceilings"))
        if self.profiled:
            row["profile"]["operations"] = hottest(plain, self.device, "operations")

    def _measure_authors(self, problem: PaperNetwork, row: Measured, x: Tensor, labels: Tensor) -> None:
        peak, steps = Peak(self.device), AuthorsSteps(problem, self.k, x, labels)
        _, loss = steps.first()
        spread = asdict(timed(steps, self.device, self.seconds, self.stop))
        row["authors"] = {"seconds_per_step": spread, "peak_bytes": peak.bytes(), "loss": loss}
        self.say(f"{problem.title}: authors {in_ms(spread)} ms/step")
        ours = row.get("loss")
        if ours is None or loss is None or abs(ours - loss) > AGREEMENT * abs(loss):
            told = ["not finite" if value is None else f"{value:.4g}" for value in (ours, loss)]
            self.note(
                f"{problem.title}: the mean losses of {FIRST} steps are {told[0]} (ours) and {told[1]} (authors): "
                "either there are few projections, or the times are not about the same thing"
            )

    # Exact certificates

    def measure_certificates(self, problem: PaperNetwork, weights: Path) -> None:
        """Times certificates of test images, one batch after the other, as long as there is time."""
        row: Measured = {"title": problem.title}
        self.check()
        model = problem.model("0.mean" in load_tensors(weights))
        load_model(weights, model)
        model = model.to(self.device).eval()
        self.record["certificates"][problem.title] = row
        cuda = self.device.type == "cuda"
        x, labels = self._images(problem, 10_000 if cuda else 1000, model)
        ball = make_ball(problem.config)
        verdicts: list[bool] = []
        with self.room(f"{problem.title}, certificates"):
            peak = Peak(self.device)

            def ours(x: Tensor, labels: Tensor) -> Tensor:
                return certify(model, x, labels, ball, Dual()).certified

            found, verdicts = self._by_batches(ours, x, labels, 1000 if cuda else 10)
            row |= found | {"peak_bytes": peak.bytes()}
            self.say(f"{problem.title}: {figure(1e3 * found['seconds_per_image'])} ms per exact certificate")
            if self.profiled:
                self.check()
                some = found["batch"]
                kinds = ("kernels", "operations") if cuda else ("operations",)
                row["profile"] = {
                    kind: hottest(lambda: ours(x[:some], labels[:some]), self.device, kind, calls=1) for kind in kinds
                }
                row["profiled_images"] = some
        if self.authors:
            self._measure_authors_certificates(problem, row, verdicts, model, x, labels)

    def _measure_authors_certificates(
        self, problem: PaperNetwork, row: Measured, ours: list[bool], model: nn.Sequential, x: Tensor, labels: Tensor
    ) -> None:
        """Times the authors' certificates on normalised images, with an eps to match: their code has no such layer. The fastest batch
        counts."""
        eps, clipped = problem.config.eps, problem.config.clip is not None
        if isinstance(model[0], Normalize):
            std = model[0].std
            if clipped or bool((std != std.flatten()[0]).any()):
                self.note(
                    f"{problem.title}: the authors' code has no balls that are clipped or stretched by normalisation"
                )
                return
            with torch.no_grad():
                x, eps, model = model[0](x), eps / std.flatten()[0].item(), nn.Sequential(*list(model)[1:])
        for batch in (10, 50, 200) if self.device.type == "cuda" else (10,):
            with self.foreign(f"{problem.title}, certificates"), torch.no_grad():
                found, theirs = self._by_batches(authors_verdicts(model, eps, clipped), x, labels, batch)
                seconds = found["seconds_per_image"]
                self.say(
                    f"{problem.title}: authors {figure(1e3 * seconds)} ms per exact certificate, {batch} at a time"
                )
                found["same_verdicts"] = sum(a == b for a, b in zip(ours, theirs, strict=False))
                found["compared"] = min(len(ours), len(theirs))
                if "authors" not in row or seconds < row["authors"]["seconds_per_image"]:
                    row["authors"] = found

    def _by_batches(
        self, verdict: Callable[[Tensor, Tensor], Tensor], x: Tensor, labels: Tensor, batch: int
    ) -> tuple[Measured, list[bool]]:
        """Seconds per image, over the batches after the first, of which as many are treated as begin within the time given; and
        the verdicts on all images that were looked at."""
        verdicts: list[bool] = []
        spent: list[float] = []
        begin = time.perf_counter()
        for start in range(0, len(x), batch):
            part = slice(start, start + batch)
            self.check()
            seconds = once(lambda: verdicts.extend(verdict(x[part], labels[part]).tolist()), self.device)  # noqa: B023
            if start > 0 or len(x) <= batch:
                spent.append(seconds / len(labels[part]))
            else:
                begin = time.perf_counter()
            if spent and time.perf_counter() - begin > self.seconds:
                break
        row: Measured = {"seconds_per_image": sum(spent) / len(spent), "low": min(spent), "high": max(spent)}
        return row | {"images": len(verdicts), "batch": batch, "certified": sum(verdicts)}, verdicts


def achieved(work: Work, seconds: float, most: dict[str, float] | None) -> Measured:
    """Rates of a step, and the parts of the machine's own ceilings that they are.

    Products of several arithmetics have one ceiling together: the time that each would take at the best rate of its own.
    """
    operations = dict(work.operations)
    row: Measured = {
        "operations": operations, "bytes_read": work.read, "bytes_written": work.written,
        "operations_per_second": sum(operations.values()) / seconds, "bytes_per_second": work.bytes / seconds,
    }  # fmt: skip
    if most is not None:
        least = sum(number / most.get(kind, most[FLOAT32]) for kind, number in operations.items())
        row |= {"part_of_arithmetic": least / seconds, "part_of_bandwidth": row["bytes_per_second"] / most[COPY]}
    return row


def in_ms(found: Measured | None, middle: str = "median") -> str:
    """A time and its range, in milliseconds; nothing for nothing."""
    if not found or middle not in found:
        return ""
    value, low, high = (figure(1e3 * found[name]) for name in (middle, "low", "high"))
    return f"{value} ({low}-{high})"


def figure(value: float) -> str:
    """Three digits, or all of a whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# What was measured, as tables in Markdown.

STEP, FLOAT32_STEP = "seconds_per_step", "seconds_per_step_float32"

COUNTED = (
    "GB/s: every operation of PyTorch reads its operands and writes its results once, and so does every kernel of ours; what a cache "
    "holds is counted all the same, so that more than the ceiling is possible. TFLOP/s: products of matrices and convolutions alone. "
    "Per cent: of the ceilings below, which were measured in this run; where products run in several arithmetics, of the time that "
    "each would take at its own ceiling."
)


def markdown(record: dict[str, Any]) -> str:
    """The record as tables, whatever is there of it."""
    settings, machine = record["settings"], record["machine"]
    authors = f", {AUTHORS} {machine[AUTHORS]}" if AUTHORS in machine else ""
    where = f"{machine['device']}, " if "device" in machine else ""
    parts = [
        "# Training steps on this machine",
        f"`{record['command']}`",
        f"{where}{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; Python {machine['python']}, torch "
        f"{machine['torch']}, autodual {machine['autodual']}{authors}. Batch {settings['batch']}, k = {settings['k']}; medians, "
        f"quartiles in brackets. First: the first {FIRST} steps, in which kernels are compiled.",
    ]
    if record["networks"]:
        parts += [_steps_table(record), COUNTED]
    if "ceilings" in record:
        most = record["ceilings"]
        rates = [
            [f"products, {name}", f"{figure(value / 1e12)} TFLOP/s"] for name, value in most.items() if name != COPY
        ]
        copied = ["copy, read and written", f"{figure(most[COPY] / 1e9)} GB/s"]
        parts.append(_table(["ceiling", "measured"], [copied, *rates]))
    if record["certificates"]:
        parts += ["## Exact certificates", _certificates_table(record["certificates"])]
    for title, row in record["networks"].items():
        for what, found in row.get("profile", {}).items():
            parts += [f"## {title}: {what}, ms per step", _profile_table(found)]
    for title, row in record["certificates"].items():
        for what, found in row.get("profile", {}).items():
            parts += [f"## {title}, certificates of {row['profiled_images']} images: {what}, ms", _profile_table(found)]
    if record["notes"]:
        parts += ["## Notes", "\n".join(f"- {note}" for note in record["notes"])]
    return "\n\n".join(parts) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _steps_table(record: dict[str, Any]) -> str:
    float32 = any(FLOAT32_STEP in row for row in record["networks"].values())
    head = ["", "authors ms/step", "ours ms/step", *(["float32 streams"] if float32 else []), "s/epoch", "faster by", "first s",
            "peak MiB", "authors' peak MiB", "GB/s", "%", "TFLOP/s", "%"]  # fmt: skip
    rows = []
    for title, row in record["networks"].items():
        authors, step = row.get("authors", {}), row.get(STEP)
        rows.append([
            title, in_ms(authors.get(STEP)), in_ms(step), *([in_ms(row.get(FLOAT32_STEP))] if float32 else []),
            "" if step is None else figure(step["median"] * row["epoch"] / record["settings"]["batch"]),
            f"{authors[STEP]['median'] / step['median']:.1f}" if authors and step else "", _number(row.get("first_seconds"), 1),
            _number(row.get("peak_bytes"), 1 << 20), _number(authors.get("peak_bytes"), 1 << 20),
            _number(row.get("bytes_per_second"), 1e9), _number(row.get("part_of_bandwidth"), 1e-2),
            _number(row.get("operations_per_second"), 1e12), _number(row.get("part_of_arithmetic"), 1e-2),
        ])  # fmt: skip
    return _table(head, rows)


def _certificates_table(found: dict[str, Measured]) -> str:
    head = ["", "ours ms/image", "authors ms/image", "faster by", "images", "at a time", "certified", "peak MiB",
            "same verdicts"]  # fmt: skip
    rows = []
    for title, row in found.items():
        authors, ours = row.get("authors"), row.get("seconds_per_image")
        rows.append([
            title, in_ms(row, "seconds_per_image"), in_ms(authors, "seconds_per_image"),
            f"{authors['seconds_per_image'] / ours:.1f}" if authors and ours else "",
            str(row.get("images", "")), f"{row.get('batch', '')}" + (f" (authors {authors['batch']})" if authors else ""),
            str(row.get("certified", "")), _number(row.get("peak_bytes"), 1 << 20),
            f"{authors['same_verdicts']} of {authors['compared']}" if authors else "",
        ])  # fmt: skip
    return _table(head, rows)


def _profile_table(rows: list[Measured]) -> str:
    cells = [
        [f"{r['ms']:.3f}", f"{100 * r['part']:.1f}", f"{r['calls']:g}", r["name"][:100], " ".join(map(str, r["shapes"]))[:120]]
        for r in rows
    ]  # fmt: skip
    return _table(["ms", "%", "calls", "what", "shapes"], cells)


def _number(value: float | None, unit: float) -> str:
    return "" if value is None else figure(value / unit)
