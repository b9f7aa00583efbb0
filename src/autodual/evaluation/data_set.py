"""certify_data: a whole data set of the user's own, batch by batch, in a given time, gone on with from a file."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

from autodual._errors import ArgumentError
from autodual._files import write_json
from autodual.certificates import Certificate, HighProbabilityCertificate, Verdict, certify
from autodual.certificates.certificate import in_words, with_digest
from autodual.data import ArrayData, Examples
from autodual.data.examples import as_array, as_labels, check_finite
from autodual.engines import BoundEngine
from autodual.engines.arguments import check_ball, check_region, require_engine
from autodual.engines.effort import Effort, ProgressOfPart, Report, TimeLimitError, in_time
from autodual.evaluation.judge import Judged, Ledger, at_once, graph_of, judged_summary, problem_of
from autodual.graph import Network
from autodual.graph.record import no_module
from autodual.runs.lines import (
    FUNCTION,
    CertificateLine,
    Line,
    Problem,
    SpecificationLine,
    check_way,
    finite,
    lines_of,
    record_about,
)  # fmt: skip
from autodual.runs.records import plain
from autodual.sets import GivenSet, InputSet, LinfBall, Perturbation
from autodual.spec import Specification, check_classifier, check_label_range, plain_labels

PIECE = 1000
"""Examples that are looked at together before the work begins."""


@dataclass(frozen=True, eq=False, repr=False)
class DataCertificate:
    """What was proved about a data set, per example: [N] each, on the CPU. `print` shows one table."""

    certified: Tensor
    """Proved for the function over the real numbers that the weights define."""
    certified_as_run: Tensor
    """Proved as well for the network as it runs in its own dtype."""
    right: Tensor
    """What was asked holds for the clean input; false where the time limit came first."""
    reached: Tensor
    """Was bounded before the time limit."""
    margins: Tensor
    """The smallest lower bound, or the one that decides a specification; minus infinity where nothing is known."""
    slack: Tensor
    """How far rounding may have moved it, at most."""
    labels: Tensor | None
    """None for a specification."""
    predicted: Tensor | None
    """-1 where the time limit came first; None for a specification."""
    problem: Problem
    """What was asked, of which network and data, and what computed the answers."""
    where: str
    """The perturbation in words."""
    seconds: float
    """What this call took; examples that a file held already took none of it."""

    def __len__(self) -> int:
        return len(self.certified)

    @property
    def wrong(self) -> Tensor:
        """[N] bool: the clean input already fails."""
        return self.reached & ~self.right

    @property
    def unknown(self) -> Tensor:
        """[N] bool: bounded, and not proved."""
        return self.reached & self.right & ~self.certified

    @property
    def verdicts(self) -> list[Verdict]:
        """As those of a certificate; an example that was not reached is UNKNOWN."""
        proved = Verdict.CERTIFIED if self.problem.basis is None else Verdict.PROBABLE
        pairs = zip(self.certified.tolist(), self.wrong.tolist(), strict=True)
        return [proved if certified else Verdict.WRONG if wrong else Verdict.UNKNOWN for certified, wrong in pairs]

    @property
    def certified_accuracy(self) -> float:
        """Fraction of all examples that is certified; those that were not reached are not."""
        return self.certified.double().mean().item()

    @property
    def error(self) -> float:
        """Fraction of the reached examples whose clean input already fails; NaN if none was reached."""
        return self.wrong.sum().item() / self.reached.sum().item() if bool(self.reached.any()) else math.nan

    @property
    def counts(self) -> dict[str, int]:
        """The lines of the table; `as run` is a part of `certified`, the others add up to all examples."""
        columns = {
            "certified": self.certified, "as run": self.certified_as_run, "unknown": self.unknown, "wrong": self.wrong,
            "not reached": ~self.reached,
        }  # fmt: skip
        return {name: int(column.sum()) for name, column in columns.items()}

    def __repr__(self) -> str:
        return f"<DataCertificate: {self.counts['certified']} of {len(self)} certified {self.where}>"

    def __str__(self) -> str:
        """A table: what was asked, a line for each verdict, and the time."""
        asked = "" if self.problem.question is None else f" for {self.problem.question.partition(' sha256')[0]}"
        chance = "" if self.problem.basis is None else f", each with probability {1 - self.problem.basis.delta:g}"
        width = len(f"{len(self):,}")
        rows = [
            f"{'  as run' if name == 'as run' else name:<12} {count:>{width},}  {count / len(self):>6.1%}"
            for name, count in self.counts.items()
        ]
        head = f"{len(self):,} examples {self.where}{asked} by {self.problem.engine}{chance}"
        return "\n".join([head, *rows, f"{'seconds':<12} {self.seconds:.1f}"])

    def to_json(self) -> str:
        """Everything as JSON; infinite or undefined numbers are null."""
        columns = {
            name: [finite(value) if isinstance(value, float) else value for value in column.tolist()]
            for name in ("labels", "predicted", "right", "reached", "certified", "certified_as_run", "margins", "slack")
            if (column := getattr(self, name)) is not None
        }
        figures = {"certified_accuracy": self.certified_accuracy, "error": finite(self.error)}
        counts = {name.replace(" ", "_"): count for name, count in self.counts.items()}
        record = {**plain(self.problem), "seconds": self.seconds, **figures, "counts": counts, **columns}
        return json.dumps(record, allow_nan=False)


def certify_data(
    model: nn.Module | Network,
    data: Any,
    ball: Perturbation | InputSet,
    engine: BoundEngine | None = None,
    *,
    batch: int | None = None,
    limit: int | None = None,
    timeout: float | None = None,
    progress: bool | Report | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> DataCertificate:
    """Try to prove, example by example, that nothing that `ball` allows changes the label, for a whole data set.

    Args:
        model: Any nn.Module in evaluation mode that maps [N, *shape] to scores [N, C]; or a captured Network.
        data: A DataLoader or Dataset of (inputs, labels), a pair (inputs, labels) of NumPy arrays or tensors, an `ImageData` or an
            `ArrayData`. In the place of the labels of a pair, any `Specification`. Each batch is put on the device, and into the
            dtype, of the model; a loader is read once and kept in memory.
        ball: What may happen to every input, in the units of the data; or a set around each of them.
        engine: How to bound; `Dual()` if not given.
        batch: Examples at a time; chosen by the size of the network if None. Engines cut a batch further, to fit into memory.
        limit: Only the first so many examples.
        timeout: Seconds after which no further example is bounded; `reached` tells which were.
        progress: True shows a line of progress on standard error, False none; a function is called with every `Progress`. None
            shows the line on a terminal, if the work will take more than a minute.
        out: A file that gets a line of JSON per example, batch by batch, so that nothing is lost; what it is about lies beside it.
        resume: Go on with the file `out`, after an interruption or a time limit. It must be about the same question.
        overwrite: Start anew, whatever `out` holds.

    Returns:
        Verdicts and margins of all examples. Print it for a table.

    Raises:
        ArgumentError: An argument cannot be used, or `out` holds something, and neither `resume` nor `overwrite` was said.
        CaptureError: The model could not be turned into a graph.
        UnsoundError: The engine only estimates, as `Projected()` does.

    Examples:
        >>> import autodual as ad
        >>> model, (images, labels) = ad.load_digits_network(), ad.load_digits("test")
        >>> found = ad.certify_data(model, (images, labels), ad.LinfBall(0.05, clip=(0.0, 1.0)), limit=100)
        >>> found.counts
        {'certified': 95, 'as run': 95, 'unknown': 1, 'wrong': 4, 'not reached': 0}
    """
    engine = require_engine(engine)
    for name, value in (("batch", batch), ("limit", limit)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ArgumentError(f"{name} must be a whole number, at least 1, or None, got {value!r}")
    if not isinstance(out, str | os.PathLike | None) or (isinstance(out, str) and "\0" in out):
        raise ArgumentError(f"out must be a path of a file, or None, got {out!r}")
    file = None if out is None else Path(out)
    if file is None and (resume or overwrite):
        raise ArgumentError(f"{'resume' if resume else 'overwrite'} is about the file of lines; name it with out=")
    if file is not None:
        check_way([file], resume, overwrite, FUNCTION)
    examples, asked = _read(data, limit, file is not None, *_place_of(model))
    with in_time(engine, len(examples), timeout, progress) as effort:
        work = _Work(model, examples, asked, _perturbation(ball, examples), ball, engine, effort)
        return work.done(file, overwrite, batch)


def _place_of(model: nn.Module | Network) -> tuple[torch.device | None, torch.dtype | None]:
    """Device and dtype of the model's numbers; None for a model that has none."""
    module = model.model if isinstance(model, Network) else model
    if not isinstance(module, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module or a Network, got {no_module(model)}")
    tensors = [value for value in (*module.parameters(), *module.buffers()) if value.is_floating_point()]
    return (tensors[0].device, tensors[0].dtype) if tensors else (None, None)


# Data of any kind as inputs in memory, and what is asked about them.


@dataclass(frozen=True, eq=False)
class Inputs(Examples):
    """Inputs where they are, which go to the model batch by batch."""

    values: Tensor
    labels: Tensor
    to_device: torch.device
    to_dtype: torch.dtype
    classes: tuple[str, ...] = ()
    name: str = "data"

    STORED = "values"
    KIND = "example"

    @property
    def device(self) -> torch.device:
        return self.to_device

    def as_input(self, stored: Tensor) -> Tensor:
        return stored.to(self.to_device, self.to_dtype)

    def kind(self) -> str:
        return f"inputs {self.values.dtype} {tuple(self.values.shape)} as {self.to_dtype}"


def _read(
    data: Any, limit: int | None, kept: bool, device: torch.device | None, dtype: torch.dtype | None
) -> tuple[Examples, Specification | None]:
    """The inputs with their labels; with a specification that is no label, zeros stand for the labels."""
    if isinstance(data, Examples):
        data = data if limit is None else data.take(limit)
        if dtype in (torch.float32, None):
            return data if device is None else data.to(device), None
        data = (data.scaled(), data.labels)
    if isinstance(data, Specification | Tensor | np.ndarray | str | bytes):
        raise ArgumentError(
            f"data must be (inputs, labels), a DataLoader or an ImageData, got {type(data).__name__} alone"
        )
    if isinstance(data, Sequence) and len(data) == 2 and not isinstance(data[0], list | tuple):
        x, asked = _inputs(data[0], "inputs"), data[1]
        of = len(x)
    else:
        x, asked = _loaded(data, limit, kept)
        of = len(asked)
    x = x if limit is None else x[:limit]
    specification = None
    if isinstance(asked, Specification):
        first = asked.part(slice(0, len(x)), of)  # refuses numbers for more or fewer examples
        labels = plain_labels(first)
        if labels is not None:
            asked = labels
        else:
            specification, asked = first, torch.zeros(len(x), dtype=torch.int64)
    else:
        asked = _labels(asked, of)[: len(x)]
    dtype = dtype or x.dtype
    return Inputs(x, asked.to(device or x.device), device or x.device, dtype), specification


def _inputs(values: Any, what: str) -> Tensor:
    if not isinstance(values, Tensor | np.ndarray):
        raise ArgumentError(f"{what} must be a tensor or a NumPy array [N, *shape], got {type(values).__name__}")
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        narrow = "f8" if values.dtype.itemsize > 8 else values.dtype.newbyteorder("=")
        kept = np.ascontiguousarray(as_array(values, what), narrow)
        values = torch.from_numpy(
            kept if kept.flags.writeable else kept.copy()
        )  # PyTorch warns of arrays that are read-only
    if not isinstance(values, Tensor) or not values.is_floating_point():
        raise ArgumentError(
            f"{what} hold {values.dtype}, but networks take floats: convert and scale them as your model expects, for example "
            f"x.astype('float32') / 255 for bytes of images"
        )
    if values.dim() < 2 or values.numel() == 0:
        raise ArgumentError(f"{what} must be [N, *shape], at least one of each, got shape {tuple(values.shape)}")
    check_finite(values.detach(), what)
    return values.detach().float() if values.dtype == torch.bfloat16 else values.detach()  # which NumPy does not know


def _labels(labels: Any, count: int) -> Tensor:
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else labels
    if not isinstance(array, np.ndarray | list | tuple):
        raise ArgumentError(
            f"labels must be integers [N], as an array or a tensor, or a specification, got {type(labels).__name__}"
        )
    return as_labels(array, count, "data", "input")


def _loaded(data: Any, limit: int | None, kept: bool) -> tuple[Tensor, Tensor]:
    """Inputs and labels of all batches of a loader, or of the first that hold `limit` examples."""
    if isinstance(data, Dataset):
        data = DataLoader(data, batch_size=256)
    if isinstance(data, DataLoader) and isinstance(data.sampler, RandomSampler) and kept:
        raise ArgumentError(
            "data: this loader shuffles, so a file of lines could not be gone on with; make it with shuffle=False"
        )
    if not isinstance(data, Iterable):
        raise ArgumentError(f"data must be (inputs, labels), a DataLoader or an ImageData, got {type(data).__name__}")
    parts, labels, done = list[Tensor](), list[Tensor](), 0
    for number, pair in enumerate(data):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            held = f"{len(pair)} things" if isinstance(pair, list | tuple) else f"a {type(pair).__name__}"
            advice = "; pass a generator of pairs, such as ((batch[key], batch[label]) for batch in loader)"
            raise ArgumentError(
                f"data: batch {number} holds {held}, but must be (inputs, labels){'' if isinstance(pair, Tensor) else advice}"
            )
        if isinstance(pair[1], int | np.integer) or (isinstance(pair[1], Tensor | np.ndarray) and pair[1].ndim == 0):
            raise ArgumentError(
                f"data: batch {number} has a single label, so these seem to be single examples; put them into batches, as by "
                f"DataLoader(data, batch_size=100)"
            )
        parts.append(_inputs(pair[0], f"data: inputs of batch {number}").cpu())
        labels.append(_labels(pair[1], len(parts[-1])))
        if parts[-1].shape[1:] != parts[0].shape[1:] or parts[-1].dtype != parts[0].dtype:
            raise ArgumentError(
                f"data: batch {number} has examples {list(parts[-1].shape[1:])} of {parts[-1].dtype}, but the first has "
                f"{list(parts[0].shape[1:])} of {parts[0].dtype}; a network takes one shape"
            )
        done += len(parts[-1])
        if limit is not None and done >= limit:
            break
    if not parts:
        raise ArgumentError("data: there are no examples")
    return torch.cat(parts), torch.cat(labels)


def _perturbation(ball: Perturbation | InputSet, data: Examples) -> Perturbation:
    """The perturbation of all examples, checked; a set as one."""
    first = data.scaled(slice(0, 1))
    if isinstance(ball, InputSet):
        check_region(ball, "ball")
        return GivenSet(ball, data.scaled())
    if not isinstance(ball, Perturbation):
        check_ball(ball, first)  # refuses it
    ball.part(slice(0, 1), first.expand(len(data), *first.shape[1:])).around(first)  # refuses an eps that does not fit
    if isinstance(ball, LinfBall):
        for start in range(0, len(data), PIECE):
            ball.check_inside(data.scaled(slice(start, start + PIECE)))
    if type(ball) is LinfBall:
        _check_contained(ball, data, first)
    return ball


def _check_contained(ball: LinfBall, data: Examples, first: Tensor) -> None:
    """Refuses numbers that the model's dtype rounds by more than eps: a certificate would be about other examples."""
    if isinstance(data, ArrayData) and torch.as_tensor(ball.eps).numel() == 1:
        scale = torch.ones(()) if ball.scale is None else ball.scale
        data.check_reach(torch.as_tensor(ball.eps).cpu() * scale.cpu())
    for start in range(0, len(data) if data.stored.dtype == torch.float64 else 0, PIECE):
        part = slice(start, start + PIECE)
        exact, x = data.stored[part].to(first.device), data.scaled(part).double()
        if torch.equal(exact, x):
            continue
        region = ball.part(part, first.expand(len(data), *first.shape[1:])).around(x)
        outside = ((exact < region.lower) | (exact > region.upper)) & (region.radius > 0)
        if bool(outside.any()):
            example, *place = outside.nonzero()[0].tolist()
            raise ArgumentError(
                f"inputs: example {start + example} has {exact[(example, *place)].item():.17g} as feature {place}, which the model's "
                f"{first.dtype} rounds by more than eps: its set would not contain it. Use model.double(), or subtract a constant"
            )


@dataclass
class _Work:
    """One call: what is certified, and how far it has come."""

    model: nn.Module | Network
    data: Examples
    asked: Specification | None
    perturbation: Perturbation
    ball: Perturbation | InputSet
    engine: BoundEngine
    effort: Effort
    first: int | None = None
    """The example that this call began with, and when."""
    started: float = 0.0
    cut: list[Line] = field(default_factory=list)
    """Lines of a batch that the time limit has cut, as far as it got."""

    def done(self, file: Path | None, anew: bool, batch: int | None) -> DataCertificate:
        began, kind = time.monotonic(), CertificateLine if self.asked is None else SpecificationLine
        step = at_once(self.model, self.data) if batch is None else batch
        problem = replace(self._problem(), batch=step)
        if self.asked is None:
            graph = graph_of(self.model, self.data.scaled(slice(0, 1)))
            check_label_range(self.data.labels, check_classifier(graph.output_shape))
        ledger = Ledger(file, anew=anew, step=step, wording=FUNCTION)
        lines: list[Any] = list(ledger.fill(kind, problem, self._find, self.data, "certifying"))
        found = self._certificate([*lines, *self.cut], problem, time.monotonic() - began)
        if file is not None and self.asked is not None:
            record_about(file, "summary").unlink(missing_ok=True)  # of lines about labels that were there before
        if file is not None and self.asked is None and len(lines) == len(self.data):
            classes = self.data.classes
            summary = judged_summary(Judged.read(lines), self.perturbation, self.engine, problem.basis, classes)
            write_json(record_about(file, "summary"), plain(summary))
        return found

    def _problem(self) -> Problem:
        problem = problem_of([self.model], self.data, self.perturbation, self.engine)
        if self.asked is None:
            return problem
        return replace(problem, question=with_digest(repr(self.asked), self.asked))

    def _find(self, part: slice) -> list[Any]:
        """The lines of some examples. TimeLimitError if the time is up before all are bounded."""
        self.effort.check()
        if self.first is None:
            self.first, self.started = part.start, time.monotonic()
        timeout = self.effort.timeout
        left = None if timeout is None else max(1e-3, timeout - (time.monotonic() - self.effort.started))
        x, tell = self.data.scaled(part), self.effort.tell
        assert tell is not None
        progress = ProgressOfPart(tell, part.start - self.first, len(x), len(self.data) - self.first, self.started)
        found = certify(
            self.model, x, self._asked(part), self._ball(part, x), self.engine, timeout=left, progress=progress
        )
        lines: list[Any] = list(
            Judged.of(found).lines(part.start) if self.asked is None else _lines_asked(found, part.start)
        )
        if found.reached is not None and not bool(found.reached.all()):
            whole = found.reached.tolist()
            self.cut = lines[: whole.index(False)]
            raise TimeLimitError("the time is up")
        return lines

    def _asked(self, part: slice) -> Tensor | Specification:
        return self.data.labels[part] if self.asked is None else self.asked.part(part, len(self.data))

    def _ball(self, part: slice, x: Tensor) -> Perturbation | InputSet:
        if isinstance(self.ball, InputSet):
            return self.ball[part]
        return self.ball.part(part, x[:1].expand(len(self.data), *x.shape[1:]))

    def _certificate(self, lines: list[Any], problem: Problem, seconds: float) -> DataCertificate:
        """What the lines say, with nothing about the examples that have none."""
        missing = len(self.data) - len(lines)

        def column(name: str, otherwise: Any, dtype: torch.dtype) -> Tensor:
            found = [getattr(line, name) for line in lines]
            return torch.tensor([otherwise if v is None else v for v in found] + [otherwise] * missing, dtype=dtype)

        certified, as_run = (column(name, False, torch.bool) for name in ("certified", "certified_as_run"))
        labels = predicted = None
        if self.asked is None:
            labels, predicted = self.data.labels.cpu(), column("predicted", -1, torch.int64)
            right = predicted == labels
        else:
            right = column("right", False, torch.bool)
        return DataCertificate(
            certified, as_run, right, torch.arange(len(self.data)) < len(lines), column("margin", -math.inf, torch.float64),
            column("slack", math.inf, torch.float64), labels, predicted, problem, in_words(self.perturbation), seconds,
        )  # fmt: skip


def _lines_asked(found: Certificate | HighProbabilityCertificate, start: int) -> list[SpecificationLine]:
    """One line for each example of a certificate about a specification; the first one is about the example `start`."""
    margin, slack = found.question.rule.value(found.margins), found.slack.max(1).values
    return lines_of(SpecificationLine, start, found.right, found.certified, found.certified_as_run, margin, slack)
