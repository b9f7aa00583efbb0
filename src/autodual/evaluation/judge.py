"""A data set certified: what is found about each example, kept in a file with a line for each, and checked again later."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, nn

from autodual._errors import ArgumentError
from autodual._files import check_plain, in_one_line, read_content, read_json
from autodual.cascades import Combination
from autodual.cascades.records import Answers, CascadeCertificate
from autodual.certificates import Certificate, HighProbabilityCertificate, certify
from autodual.certificates.certificate import collapse, describe
from autodual.data import Examples
from autodual.engines import IBP, AlphaCrown, BestOf, BoundEngine, Crown, Dual, HighProbability
from autodual.engines.effort import TimeLimitError
from autodual.engines.prepare import capture, dual_network
from autodual.engines.results import generators
from autodual.evaluation.processes import UNWATCHED, Watch, batch_size, concatenated, in_turns, on_all, on_cpu
from autodual.graph import Network
from autodual.graph.digest import digest_network
from autodual.runs.config import Proving
from autodual.runs.folder import Run, versions
from autodual.runs.lines import (
    COMMAND,
    LINES_LIMIT,
    Asked,
    CascadeLine,
    CertificateLine,
    L,
    Line,
    LineFile,
    Problem,
    Wording,
    lines_of,
    parse_lines,
    read_problem,
    record_about,
    split_lines,
)  # fmt: skip
from autodual.runs.records import Basis, Summary, plain
from autodual.sets import Perturbation

ENGINES: dict[Proving, BoundEngine] = {
    "dual": Dual(),
    "crown": Crown(),
    "ibp": IBP(),
    "crown-ibp": Crown(intermediate=IBP()),
    "crown-zero": Crown(lower="zero", intermediate=IBP()),
    "best-ibp": BestOf(IBP(), Crown(intermediate=IBP()), Crown(lower="zero", intermediate=IBP())),
    "best": BestOf(IBP(), Crown(lower="zero", intermediate=IBP()), Dual(), Crown()),
    "best-everywhere": BestOf(Dual(), Crown(), every_activation=True),
    "alpha": BestOf(IBP(), Crown(lower="zero", intermediate=IBP()), Dual(), AlphaCrown()),
}
"""Engines that prove, by their names on the command line."""
SMALL_UNITS = 10_000
"""Units, the input's features included, of a network whose certificates are found for a whole batch at once."""
RENEWED = ("device", "autodual", "torch")
"""Entries of a problem that may change between two calls: lines are then found anew, since one file has one arithmetic."""


@dataclass(frozen=True)
class Judged:
    """What certification says about examples, in order: [N] each."""

    labels: Tensor
    predicted: Tensor
    certified: Tensor
    certified_as_run: Tensor
    margins: Tensor
    """The smallest one."""
    slack: Tensor
    """The largest one: how far rounding may have moved a margin."""

    @property
    def error(self) -> float:
        return (self.predicted != self.labels).double().mean().item()

    @property
    def robust_error(self) -> float:
        return 1 - self.certified.double().mean().item()

    @property
    def robust_error_as_run(self) -> float:
        return 1 - self.certified_as_run.double().mean().item()

    def collapse(self, classes: Sequence[str] = ()) -> str | None:
        """A sentence about a network that gives one answer for everything; None for any other."""
        return collapse(self.predicted.tolist(), self.labels.tolist(), self.margins.tolist(), classes)

    @classmethod
    def of(cls, found: Certificate | HighProbabilityCertificate) -> Judged:
        smallest, slack = found.margins.min(1).values, found.slack.max(1).values
        return on_cpu(cls(found.labels, found.predicted, found.certified, found.certified_as_run, smallest, slack))

    @classmethod
    def read(cls, lines: Sequence[CertificateLine]) -> Judged:
        """The columns of lines that were read from a file."""
        margins = torch.tensor([torch.nan if line.margin is None else line.margin for line in lines])
        slack = torch.tensor([torch.inf if line.slack is None else line.slack for line in lines])
        labels, predicted, proved, as_run = columns(lines, "label", "predicted", "certified", "certified_as_run")
        return cls(labels, predicted, proved, as_run, margins, slack)

    def lines(self, start: int) -> list[CertificateLine]:
        """One line for each example, the first of which is the example `start`."""
        return lines_of(CertificateLine, start, *(getattr(self, f.name) for f in fields(self)))


def columns(lines: Sequence[Line], *names: str) -> list[Tensor]:
    """Entries of lines by name, [N] each."""
    return [torch.tensor([getattr(line, name) for line in lines]) for name in names]


def judge(
    model: nn.Module, data: Examples, ball: Perturbation, engine: BoundEngine | None = None, what: str = "certifying",
    watch: Watch = UNWATCHED,
) -> Judged:  # fmt: skip
    """Certifies all examples, some at a time."""

    def one(x: Tensor, labels: Tensor) -> Judged:
        return Judged.of(certify(model, x, labels, ball, engine))

    return concatenated(on_all(one, data, what, watch))


def judged_summary(
    found: Judged, ball: Perturbation, engine: BoundEngine, rests_on: Basis | None, classes: Sequence[str]
) -> Summary:
    """What all certificates say together. Over many examples the probabilities of `HighProbability` add up: what these do not certify
    is no robust error."""
    exact, as_run = found.robust_error, found.robust_error_as_run
    rates: dict[str, Any] = {"robust_error": exact, "robust_error_as_run": as_run, "confidence": 1.0}
    if isinstance(engine, HighProbability):
        rates = {"not_certified": exact, "not_certified_as_run": as_run, "confidence": 1 - engine.delta}
    return Summary(
        perturbation=describe(ball), engine=repr(engine), examples=len(found.labels), error=found.error, **rates,
        collapsed=found.collapse(classes), basis=rests_on,
    )  # fmt: skip


def basis(model: nn.Module | Network, data: Examples, ball: Perturbation, engine: BoundEngine) -> Basis | None:
    """What a certificate with a probability rests on; None for a proof."""
    if not isinstance(engine, HighProbability):
        return None
    x = data.scaled(slice(0, 1))
    first = ball.part(slice(0, 1), x.expand(len(data), *x.shape[1:]))
    return Basis(**asdict(engine.confidence(dual_network(model, x), first.around(x))))


def at_once(model: nn.Module | Network, data: Examples) -> int:
    """How many examples are certified between two points at which the work can be stopped: fewer for a larger network."""
    units = generators(dual_network(model, data.scaled(slice(0, 1))))
    return max(1, batch_size(data) * SMALL_UNITS // max(SMALL_UNITS, units))


# A file with one line for each example: found batch by batch, and gone on with after an interruption.


@dataclass(frozen=True)
class Ledger:
    """A file of lines, and how the work on it is shared, shown, and gone on with. The first process writes the file."""

    path: Path | None
    """Nothing is kept if it is None."""
    watch: Watch = UNWATCHED
    """Hears, too, which line of an earlier call cannot be right, and is found again with all that follow."""
    anew: bool = False
    renewed: Sequence[str] = ()
    """See `LineFile.begin`."""
    step: int | None = None
    """Examples at a time, between which it can be stopped; a whole batch when None."""
    asked: Asked | None = None
    """Noted beside the lines, for whoever checks them."""
    until: float | None = None
    """When to end, by time.monotonic(): lines that are not found by then are left for another call."""
    wording: Wording = COMMAND

    def fill(
        self, kind: type[L], problem: Problem, find: Callable[[slice], list[L]], data: Examples, what: str
    ) -> list[L]:
        """Returns all lines about `problem`, or those up to the time limit. `find` makes, for some examples at a time, the lines that
        the file does not hold yet. When it raises TimeLimitError, these are the lines of the batches before."""

        def in_time(part: slice) -> list[L]:
            check_time(self.until)
            return find(part)

        file = (
            None if self.path is None else LineFile(self.path, kind, data.labels.tolist(), self.watch.say, self.wording)
        )
        step, lines = self.step or batch_size(data), list[L]()
        problem = replace(problem, asked=self.asked, batch=step)
        try:
            if file is not None:
                lines = self.watch.group.by_first(lambda: file.begin(problem, step, self.anew, self.renewed))
            for turn in in_turns(in_time, data, what, self.watch, start=len(lines), step=step):
                new = [line for found in turn for line in found]
                lines += new
                if file is not None:
                    self.watch.group.by_first(partial(file.append, new))
        except TimeLimitError:  # in whichever process; what it was at is lost
            pass
        finally:
            if file is not None:
                file.close()
        return lines

    def remove(self) -> None:
        if self.path is not None:
            for file in (self.path, record_about(self.path, "problem")):
                file.unlink(missing_ok=True)


def check_time(until: float | None) -> None:
    """Raises TimeLimitError if it is later than `until`."""
    if until is not None and time.monotonic() >= until:
        raise TimeLimitError("time is up")


def problem_of(
    models: Sequence[nn.Module | Network], data: Examples, ball: Perturbation, engine: BoundEngine
) -> Problem:
    """The question that lines about these examples answer, and what computes the answers."""
    x = data.scaled(slice(0, 1))
    return Problem(
        format=Problem.FORMAT, perturbation=describe(ball), engine=repr(engine), examples=len(data), data=data.digest(),
        network=" ".join(digest_network(graph_of(model, x)) for model in models), dtype=str(x.dtype).removeprefix("torch."),
        device=x.device.type, batch=batch_size(data), **versions(), basis=basis(models[0], data, ball, engine),
    )  # fmt: skip


def graph_of(model: nn.Module | Network, x: Tensor) -> Network:
    return model if isinstance(model, Network) else capture(model, x)


def judge_to_file(ledger: Ledger, model: nn.Module, data: Examples, ball: Perturbation, engine: BoundEngine) -> Judged:
    """Certifies all examples, or as many as there is time for, with a line for each."""
    problem = problem_of([model], data, ball, engine)
    find = partial(judge_lines, model, ball, engine, data, until=ledger.until)
    return Judged.read(ledger.fill(CertificateLine, problem, find, data, "certifying"))


def judge_lines(
    model: nn.Module, ball: Perturbation, engine: BoundEngine, data: Examples, part: slice, until: float | None = None
) -> list[CertificateLine]:
    """The lines of some examples, which are bounded together. TimeLimitError if that is not done at the time `until`."""
    watch = None if until is None else lambda _: check_time(until)
    found = certify(model, data.scaled(part), data.labels[part], ball, engine, progress=watch)
    if found.reached is not None:
        raise TimeLimitError("time is up")
    return Judged.of(found).lines(part.start)


# Several models together.


def cascade_file(path: Path) -> Path:
    """Where the lines of a cascade lie, beside those of its first stage: a.jsonl has them in a.cascade.jsonl, a plain `a` in
    a.lines-cascade.jsonl."""
    return record_about(path, "cascade").with_suffix(".jsonl")


def cascade_to_file(ledger: Ledger, combination: Combination, data: Examples) -> CascadeCertificate:
    """Certifies all examples with a cascade, with a line for each."""
    problem, find = cascade_problem(combination, data), partial(cascade_lines, combination, data)
    return read_cascade(combination, ledger.fill(CascadeLine, problem, find, data, "certifying the cascade"))


def cascade_problem(combination: Combination, data: Examples) -> Problem:
    """The question that lines of a cascade answer."""
    problem = problem_of(combination.models, data, combination.ball, combination.engine)
    return replace(problem, combination=repr(combination))


def cascade_lines(combination: Combination, data: Examples, part: slice) -> list[CascadeLine]:
    """The lines of some examples."""
    found = combination.certify(data.scaled(part), data.labels[part])
    answers, proved = found.answers, (found.sound, found.sound_as_run, found.no_wrong_certificate)
    return lines_of(CascadeLine, part.start, found.labels, answers.label, answers.stage, answers.certified, *proved)


def read_cascade(combination: Combination, lines: Sequence[CascadeLine]) -> CascadeCertificate:
    """What the lines of a cascade say together."""
    label, sound, as_run, none_wrong = columns(lines, "label", "sound", "sound_as_run", "no_wrong_certificate")
    answers = Answers(*columns(lines, "answer", "certified", "stage"))
    return CascadeCertificate(
        combination.kind, combination.answering(), label, answers, sound, as_run, none_wrong, describe(combination.ball),
        repr(combination.engine),
    )  # fmt: skip


# Lines of a file computed again, some of them, and compared with what is written.

Expected = list[tuple[Path, dict[str, Any]]]
"""Records beside a file of lines, and what they must say."""


@dataclass(frozen=True)
class Recheck(Generic[L]):
    """A file of certificates, and how its lines are found again."""

    problem: Problem
    """The note beside the file."""
    kind: type[L]
    lines: list[L | str]
    """Per example, in order: the record, or what is wrong with its line."""
    data: Examples
    find: Callable[[Examples, slice], list[L]]
    """Lines of some of the data."""
    expected: Callable[[list[L]], Expected]
    """What records beside the file must say if the lines are these."""

    @property
    def entries(self) -> tuple[str, ...]:
        """What is compared of a line."""
        return tuple(f.name for f in fields(self.kind))

    def contradictions(self) -> list[str]:
        """Sentences about records that say something else than all lines together; none while lines are missing."""
        lines = [line for line in self.lines if not isinstance(line, str)]
        told: list[str] = []
        for path, expected in self.expected(lines) if len(lines) == len(self.data) else ():
            found = read_json(path) if path.exists() else {}
            if not isinstance(found, dict):
                raise ArgumentError(f"{path}: holds no record")
            told += [
                f"{path.name} has {_short(found[name])} as {name}, but the lines say {_short(value)}"
                for name, value in expected.items()
                if name in found and not _same(found[name], value)
            ]
        return told

    def differences(self, sample: list[int], tell: Callable[[int], None]) -> list[str]:
        """Sentences about lines that cannot be right, and about lines of the sample that differ from what is found now.

        What differs when the sample is computed by itself is computed once more among the examples that it was computed with:
        how far rounding goes, and where float64 is used, may depend on these. Where certificates are random, the numbers that an
        example gets depend on its whole batch, so there is no first try.
        """
        batch = self.problem.batch
        told = {i: [f"line {i + 1} {line}"] for i, line in enumerate(self.lines) if isinstance(line, str)}
        left = [index for index in sample if index not in told]
        for part in [left[i : i + batch] for i in range(0, len(left), batch)] if self.problem.basis is None else ():
            found = self.find(self.data.select(torch.tensor(part, device=self.data.device)), slice(0, len(part)))
            fine = {i for i, line in zip(part, found, strict=True) if not self._compare(i, line)}
            left = [index for index in left if index not in fine]
            tell(0)
        for start in sorted({index // batch * batch for index in left}):
            stop = min(len(self.data), start + batch)
            found = self.find(self.data, slice(start, stop))
            told |= {i: self._compare(i, found[i - start]) for i in left if start <= i < stop}
            tell(sum(index < stop for index in sample))
        tell(len(sample))
        return [sentence for index in sorted(told) for sentence in told[index]]

    def _compare(self, index: int, found: L) -> list[str]:
        written = self.lines[index]
        assert not isinstance(written, str)
        return compare(written, replace(found, index=index))


def compare(written: L, found: L) -> list[str]:
    """Sentences about entries that differ. Margins may differ by their slack, once for each time that they were computed."""
    told = []
    for name in (f.name for f in fields(found)):
        before, now = getattr(written, name), getattr(found, name)
        if name not in ("margin", "slack"):
            same = before == now
        elif before is None or now is None:
            same = before is now
        elif name == "margin":
            slack = getattr(found, "slack", None)
            same = abs(before - now) <= 2 * (math.inf if slack is None else slack)
        else:  # a slack of another size would be that of another computation
            same = now / 2 <= before <= 2 * now
        if not same:
            told.append(f"example {found.index}: {name} is written as {before}, but is {now}")
    return told


def noted_problem(file: Path) -> Problem:
    """What a file of lines that can be checked is about."""
    with in_one_line(file, "cannot be read"):
        check_plain(file)
    about = record_about(file, "problem")
    if not about.exists():
        raise ArgumentError(
            f"{file}: {about.name} is not beside it, which says what certificates are about; check another file"
        )
    problem = read_problem(about)
    if problem is None or problem.format != Problem.FORMAT:
        raise ArgumentError(
            f"{file}: {about.name} is damaged, or was written by another version, which did not note all that a check needs; certify "
            f"again to have a file that can be checked"
        )
    return problem


def recheck(
    file: Path, problem: Problem, model: nn.Module, combination: Combination | None, data: Examples, ball: Perturbation
) -> Recheck[CertificateLine] | Recheck[CascadeLine]:
    """Opens a file that is about `problem`, to be checked against a network or cascade. ArgumentError if it is about another one."""
    engine = _engine(file, problem)
    if problem.combination is None:
        now, find = problem_of([model], data, ball, engine), partial(judge_lines, model, ball, engine)
        lines = _lines(file, problem, now, CertificateLine, data)
        return Recheck(problem, CertificateLine, lines, data, find, partial(_beside, file, problem, ball, engine, data))
    if combination is None:
        raise ArgumentError(f"{file}: is about a cascade, but what it names is none")
    cascade = combination.with_engine(engine)
    # `certify` writes the summary beside the lines of the first stage.
    summary = file.with_name(file.name.removesuffix("cascade.jsonl") + "summary.json")

    def beside(rows: list[CascadeLine]) -> Expected:
        return [(summary, {"examples": len(rows), "cascade": read_cascade(cascade, rows).summary()})]

    rows = _lines(file, problem, cascade_problem(cascade, data), CascadeLine, data)
    return Recheck(problem, CascadeLine, rows, data, partial(cascade_lines, cascade), beside)


def _engine(file: Path, problem: Problem) -> BoundEngine:
    """The engine that the problem names."""
    engines, rests_on = list(ENGINES.values()), problem.basis
    try:
        engines = engines if rests_on is None else [HighProbability(rests_on.delta, rests_on.k, seed=rests_on.seed)]
    except ValueError:
        engines = []
    for engine in engines:
        if repr(engine) == problem.engine:
            return engine
    raise ArgumentError(f"{file}: by the engine {problem.engine[:100]}, which `certify` cannot make again")


def _lines(file: Path, problem: Problem, now: Problem, kind: type[L], data: Examples) -> list[L | str]:
    difference = problem.difference(now, "device", *versions())
    if difference is not None:
        raise ArgumentError(f"{file}: {difference[1]}{made_with(problem, data)}; it cannot be checked against this")
    lines = split_lines(read_content(file, LINES_LIMIT))
    if not lines:
        raise ArgumentError(f"{file}: holds no certificates yet")
    if len(lines) > len(data):
        raise ArgumentError(f"{file}: has {len(lines)} lines about {len(data)} examples")
    return list(parse_lines(kind, lines, data.labels.tolist()))


def finished_lines(file: Path, problem: Problem, kind: type[L], data: Examples) -> list[L] | None:
    """The lines of a file that has all that `problem` asks for, on whichever machine they were found; None if any is missing."""
    note = record_about(file, "problem")
    noted = read_problem(note) if file.exists() and note.exists() else None
    if noted is None or noted.difference(problem, *RENEWED) is not None:
        return None
    found = list(parse_lines(kind, split_lines(read_content(file, LINES_LIMIT)), data.labels.tolist()))
    lines = [line for line in found if not isinstance(line, str)]
    return lines if len(lines) == len(found) == len(data) else None


def made_with(problem: Problem, data: Examples) -> str:
    """A clause about what computed the file, where that is not what computes now."""
    now = {"device": data.device.type} | versions()
    before = {name: getattr(problem, name) for name in now}
    other = [f"{name} {before[name][:40]}, now {value}" for name, value in now.items() if before[name] != value]
    return f"; it was made with {', '.join(other)}" if other else ""


def _beside(
    file: Path, problem: Problem, ball: Perturbation, engine: BoundEngine, data: Examples, lines: list[CertificateLine]
) -> Expected:
    """The summary that `certify` writes, and the evaluation of a run."""
    found = Judged.read(lines)
    said = plain(judged_summary(found, ball, engine, problem.basis, data.classes))
    each = {name: getattr(found, name).tolist() for name in ("labels", "predicted", "certified", "certified_as_run")}
    run = Run(file.parent)
    more: Expected = [(run.evaluation_file, said | each)] if file.name == run.certificates_file.name else []
    return [(record_about(file, "summary"), said), *more]


def _same(found: Any, expected: Any) -> bool:
    """Equal but for the last digits of fractions."""
    if isinstance(found, int | float) and isinstance(expected, float) and not isinstance(found, bool):
        return abs(found - expected) < 1e-9
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(_same(found[name], expected[name]) for name in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    return bool(found == expected)


def _short(value: Any) -> str:
    return str(value) if len(str(value)) <= 40 else f"{str(value)[:40]}..."
