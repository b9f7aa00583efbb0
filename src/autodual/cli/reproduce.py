"""autodual reproduce ROW... | list | pack | unpack | tables | figures"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from autodual._errors import ArgumentError, AutodualError
from autodual.cli.options import row_names, with_config_options
from autodual.cli.terminal import Display, InterruptedRunError, Signals, answer, print_table, several_processes, speaks
from autodual.reproduce.campaign import PART_BYTES, Campaign, Phase, Task, chosen_tasks, in_order
from autodual.reproduce.rows import BEST, BY_NAME, MODERN, RECIPES, ROWS, SEEDED, SEEDS, Recipe, rows_of_group
from autodual.runs.row_records import NetworkFigures, RowFigures

if TYPE_CHECKING:
    from autodual.reproduce.pack import Unit

RUN = "run"


class RowsGroup(TyperGroup):
    """`reproduce mnist-small-0.1` means `reproduce run mnist-small-0.1`: what is no command is a row."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [RUN, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Commands, options, and rows."""
        rows = next(each for each in self.commands[RUN].params if each.name == "rows")
        return [*super().shell_complete(ctx, incomplete), *rows.shell_complete(ctx, incomplete)]


app = typer.Typer(
    cls=RowsGroup,
    help="Train and evaluate the rows of the paper's tables, and build the tables from the records.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def with_folders(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command with these fields of `Campaign` as options, or all; those given arrive in `places`."""
    return with_config_options(*names, record=Campaign, into="places")


FOLDERS = ("configs", "results", "work")


@app.command("list")
@with_folders(*FOLDERS)
def list_(places: dict[str, Any]) -> None:
    """All rows in the order of the campaign: the paper's figures, ours, and how far each has come."""
    campaign = Campaign(**places)
    known = (*(Task(name, "best") for name in BEST), *(Task(name, "modern") for name in MODERN))
    tasks = in_order([*campaign.tasks(), *known])
    first = [task for task in tasks if task.seed == 0]
    head = ("row", "recipe", "paper: robust / error, %", "ours", "state")
    lines = [_line(campaign, task) for task in first]
    print_table([head, *lines])
    done = sum(campaign.progress(Task(row.name)).step == Phase.DONE for row in ROWS)
    answer(rows=[_fields(campaign, task) for task in first], done=done, of=len(ROWS))
    print(f"{done} of {len(ROWS)} rows are done in the paper's recipe")


def _fields(campaign: Campaign, task: Task) -> dict[str, Any]:
    """What a script reads of a row: errors are parts of 1."""
    row, record = BY_NAME.get(task.row), campaign.record(task)
    paper = (None, None) if row is None else tuple(round(each / 100, 6) for each in row.paper)
    ours = (None, None) if record is None else (_robust_error(record.figures), record.figures.error)
    return {
        "row": task.row, "recipe": task.recipe, "paper_robust_error": paper[0], "paper_error": paper[1],
        "robust_error": ours[0], "error": ours[1], "state": str(campaign.progress(task)),
    }  # fmt: skip


def _robust_error(figures: RowFigures) -> float:
    """The robust error of a network, or a cascade's stage-certified error, which is what the paper reports."""
    return figures.robust_error if isinstance(figures, NetworkFigures) else figures.errors.stage_certified_error


def _line(campaign: Campaign, task: Task) -> tuple[str, ...]:
    row, record, state = BY_NAME.get(task.row), campaign.record(task), str(campaign.progress(task))
    paper = "-" if row is None else "{:.2f} / {:.2f}".format(*row.paper)
    ours = "-"
    if record is not None:
        figures = record.figures
        ours = f"{100 * _robust_error(figures):.2f} / {100 * figures.error:.2f}"
    if task.row in SEEDED and task.recipe == "paper":
        seeds = [campaign.progress(Task(task.row, task.recipe, seed)).step == Phase.DONE for seed in range(SEEDS)]
        state += f" ({sum(seeds)} of {SEEDS} seeds)"
    return task.row, task.recipe, paper, ours, state


@app.command(RUN)
@with_folders()
def run(
    places: dict[str, Any],
    rows: Annotated[
        list[str],
        typer.Argument(
            help="rows, as `autodual reproduce list` shows them; table1 to table4; all", autocompletion=row_names
        ),
    ],
    recipe: Annotated[
        str,
        typer.Option(
            help="paper: its settings; best: ours, from CONFIGS/best; modern: later methods, from CONFIGS/modern",
            autocompletion=lambda: list(RECIPES),
        ),
    ] = "paper",
    minutes: Annotated[
        float | None, typer.Option(help="stop after so long, with a checkpoint; the same command goes on")
    ] = None,
    jobs: Annotated[int, typer.Option(help="rows side by side, each in a process of its own")] = 1,
    seeds: Annotated[int, typer.Option(help="train with so many seeds: 0, 1, ...")] = 1,
    seed: Annotated[int | None, typer.Option(help="train with this one alone")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="evaluate by this engine now, the others later; dual, ibp, crown; or alpha, on request only; may be repeated",
            autocompletion=lambda: ["dual", "ibp", "crown"],
        ),
    ] = None,
    evaluation: Annotated[bool, typer.Option("--evaluation/--no-evaluation", help="evaluate, or only train")] = True,
    side_by_side: Annotated[int, typer.Option(hidden=True)] = 1,
    until: Annotated[float | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train and evaluate rows, or what is left to do of them; what is finished is not done again. torchrun shares the evaluation of a
    trained row between processes."""
    campaign = Campaign(**places)
    for name, value in (("--jobs", jobs), ("--seeds", seeds)):
        if value < 1:
            raise ArgumentError(f"{name} must be at least 1, got {value}")
    tasks = chosen_tasks(rows, _recipe(recipe), [seed] if seed is not None else range(seeds), campaign)
    for task in tasks:
        campaign.config(task)  # refuses a name that does not exist before anything is begun
    if several_processes() and (len(tasks) > 1 or jobs > 1):
        raise ArgumentError(
            f"under torchrun, one row is evaluated, by all processes; got {len(tasks)} rows, {jobs} jobs"
        )
    from autodual.reproduce.jobs import Deadline, run_in_turn, run_side_by_side
    from autodual.reproduce.one_row import Extent

    extent = Extent(tuple(engine) if engine else None, evaluation, max(side_by_side, jobs))
    with Signals() as signals:
        deadline = Deadline.within(minutes, signals.stop, until)
        if jobs > 1:
            outcome = run_side_by_side(campaign, tasks, deadline, jobs, _say, extent)
        else:
            display = Display(deadline.is_over)
            with display.bars:
                outcome = run_in_turn(campaign, tasks, deadline, display.watch, _say, extent)
        failed = {str(task): reason for task, reason in outcome.failed.items()}
        finished = [str(task) for task in tasks if task not in (*outcome.unfinished, *outcome.failed)]
        answer(finished=finished, left=[str(task) for task in outcome.unfinished], failed=failed)
        if signals.received is not None:
            raise InterruptedRunError("stopped as asked; the same command goes on", signals.received)
    if outcome.unfinished:
        _say(f"time is up: {len(outcome.unfinished)} of {len(tasks)} are not finished; the same command goes on")
    if outcome.failed:
        names = "; ".join(f"{task}: {reason}" for task, reason in outcome.failed.items())
        error = AutodualError(f"{len(outcome.failed)} of {len(tasks)} failed: {names}")
        error.told = not speaks()
        raise error


def _recipe(text: str) -> Recipe:
    for recipe in RECIPES:
        if text == recipe:
            return recipe
    raise ArgumentError(f"--recipe must be one of {', '.join(RECIPES)}, got {text!r}")


def _say(line: str) -> None:
    if speaks():
        print(line, flush=True)


@app.command()
@with_folders(*FOLDERS)
def pack(
    places: dict[str, Any],
    out: Annotated[Path, typer.Argument(help="OUT.tar: writes OUT-1.tar, OUT-2.tar ...")],
    rows: Annotated[
        list[str] | None,
        typer.Argument(help="only these rows, or table1 to table4; all of which there is something when not given"),
    ] = None,
    light: Annotated[
        bool, typer.Option("--light", help="of finished rows, the record alone: enough not to repeat them")
    ] = False,
    weights: Annotated[
        bool, typer.Option("--weights", help="also weights of finished rows that the results do not keep")
    ] = False,
    part_mib: Annotated[float, typer.Option(help="largest size of a part")] = PART_BYTES / 2**20,
    most_mib: Annotated[
        float | None, typer.Option(help="largest size of all parts; rows that do not fit are named")
    ] = None,
) -> None:
    """Write what must be kept of finished rows, and what the others need to go on, into files that can travel."""
    from autodual.reproduce.pack import that_fit, unit_of, write_pack

    campaign = Campaign(**places)
    named = {row for name in rows or () for row in rows_of_group(name) or (name,)}
    tasks = [task for task in campaign.tasks() if not rows or task.row in named]
    units = [unit for task in tasks if (unit := unit_of(campaign, task, light, weights)) is not None and unit.files]
    left_out: list[Unit] = []
    if most_mib is not None:
        units, left_out = that_fit(units, int(most_mib * 2**20))
    parts = write_pack(out, units, int(part_mib * 2**20))
    answer(
        packed=[str(unit.task) for unit in units], left_out=[str(unit.task) for unit in left_out],
        parts=[{"path": str(part), "bytes": part.stat().st_size} for part in parts],
    )  # fmt: skip
    for row in sorted(named - {unit.task.row for unit in (*units, *left_out)}):
        print(f"{row}: nothing to pack")
    for unit in units:
        print(f"{unit.task}: packed ({unit.progress})")
    for unit in left_out:
        print(f"{unit.task}: left out, it does not fit ({unit.progress}; {unit.packed_size() / 2**20:.1f} MiB)")
    for part in parts:
        print(f"{part}: {part.stat().st_size / 2**20:.1f} MiB")
    if not parts:
        print("nothing to pack")


@app.command()
@with_folders(*FOLDERS)
def unpack(places: dict[str, Any], parts: Annotated[list[Path], typer.Argument(help="all parts of a pack")]) -> None:
    """Merge a pack into this tree. What is newer here stays."""
    from autodual.reproduce.pack import unpack as unpack_parts

    found = unpack_parts(Campaign(**places), parts)
    answer(tasks={str(task): str(what) for task, what in found.items()})
    for task, what in found.items():
        print(f"{task}: {what}")


@app.command()
@with_folders("configs", "results")
def tables(
    places: dict[str, Any],
    markdown: Annotated[Path, typer.Option(help="the page of the documentation")] = Path("docs/results.md"),
    page: Annotated[Path | None, typer.Option(help="the HTML page; index.html in the results when not given")] = None,
) -> None:
    """Build the tables from the records in the results, as Markdown and as an HTML page."""
    from autodual.reproduce.page import write_tables

    campaign = Campaign(**places)
    target = page or campaign.results / "index.html"
    write_tables(campaign, markdown, target)
    answer(markdown=str(markdown), page=str(target))
    print(f"{markdown}\n{target}")


@app.command()
@with_folders("configs", "results")
def figures(
    places: dict[str, Any], out: Annotated[Path, typer.Option(help="folder for the pictures")] = Path("docs/figures")
) -> None:
    """Draw those of the paper's figures whose rows have run."""
    from autodual.reproduce.figures import write_figures

    drawn = write_figures(Campaign(**places), out)
    answer(figures={name: None if path is None else str(path) for name, path in drawn.items()})
    for name, path in drawn.items():
        print(f"{name}: not drawn, since its rows have not run" if path is None else path)
