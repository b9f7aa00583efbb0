"""What must survive a machine, in files that are small enough to travel; and back into a tree, in which nothing newer is lost.

A pack is a few tar files. Each holds chunks of files and a list of them, so a file may begin in one part and end in the next; it is
put together only if all of its chunks are there and its SHA-256 is right. Of a row that is done, a pack holds its results; of one that
is not, what it needs to go on: config, metrics, finished stages, the newest checkpoint, and lines of certificates.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from autodual._errors import ArgumentError
from autodual._files import check_plain, parse_json, write_bytes
from autodual.reproduce.campaign import PART_BYTES, Campaign, Phase, RowProgress, Task, in_order
from autodual.runs import checkpoint
from autodual.runs.folder import Run
from autodual.runs.records import Environment, parse, plain, read
from autodual.runs.row_records import CERTIFICATES, EVALUATION, WEIGHTS, RowRecord

FORMAT = "autodual pack 1"
MANIFEST = "manifest.json"
ROOTS = ("results", "work")
RESULT_FILES = (EVALUATION, CERTIFICATES, WEIGHTS, "config.yaml", "environment.json", "metrics.jsonl")
"""All that `results/` has of a task; the record, which says that the others are there, first."""
OVERHEAD = 16384
"""Bytes of a part for the head of the list and the end of the tar file, beyond chunks."""
HEAD = 2048
"""Bytes that a chunk takes beyond its content: its head, what fills its last block, and its entry in the list."""
LEVEL = 3


@dataclass(frozen=True)
class Unit:
    """All files of one task, and how far it had come."""

    task: Task
    started: str
    """When the attempt was begun; a later attempt replaces an earlier one, however far that had come."""
    progress: RowProgress
    files: dict[str, Path]
    """By their names in the pack, which begin with `results/` or `work/`."""

    def packed_size(self) -> int:
        """Bytes that the files take in a pack, about."""
        contents = (path.read_bytes() for path in self.files.values())
        return sum(HEAD + min(len(content), len(zlib.compress(content, LEVEL))) for content in contents)


def unit_of(campaign: Campaign, task: Task, light: bool = False, weights: bool = False) -> Unit | None:
    """What there is of a task; None if there is nothing.

    light: of a finished task only its record, so that another machine knows that it is done, and the network if its cascade may begin
    with it. weights: of a finished task also those that `results/` does not keep.
    """
    progress, result, run = campaign.progress(task), campaign.result(task), campaign.run(task)
    if progress.step == Phase.NOT_RUN:
        return None
    names: tuple[str, ...] = RESULT_FILES
    done = progress.step == Phase.DONE
    if light and done:
        cascade = Task(f"{task.row}-cascade", task.recipe, task.seed)
        waited_for = campaign.config_file(cascade).is_file() and campaign.progress(cascade).step != Phase.DONE
        names = (EVALUATION, WEIGHTS, "config.yaml", "metrics.jsonl") if waited_for else (EVALUATION,)
    chosen = [result / name for name in names]
    if not done:
        chosen += _needed_to_go_on(run)
    elif weights and not light:
        chosen += [run.model_file, *sorted(run.folder.glob("stages/*.safetensors"))]
    places = {campaign.results: "results", campaign.work: "work"}
    roots = {path: next(place for place in places if path.is_relative_to(place)) for path in chosen if path.is_file()}
    files = {f"{places[root]}/{path.relative_to(root).as_posix()}": path for path, root in roots.items()}
    return Unit(task, _started(campaign, task, progress), progress, files)


def that_fit(units: Iterable[Unit], most_bytes: int) -> tuple[list[Unit], list[Unit]]:
    """Units that fit into so many bytes together, and the others. What is farthest comes first, then what is smallest."""
    sizes = {unit.task: unit.packed_size() for unit in units}
    fitting, left_out, used = list[Unit](), list[Unit](), 2 * OVERHEAD
    for unit in sorted(units, key=lambda unit: (-unit.progress.step, sizes[unit.task])):
        if used + sizes[unit.task] <= most_bytes:
            fitting.append(unit)
            used += sizes[unit.task] + HEAD
        else:
            left_out.append(unit)
    return fitting, left_out


def _needed_to_go_on(run: Run) -> list[Path]:
    patterns = (
        "config.yaml", "environment.json", "metrics.jsonl", "campaign.json", "failure.json", "best-combination.json", "stages/*.json*",
        "stages/*.safetensors", "*.jsonl", "*.problem.json",
    )  # fmt: skip
    chosen = [path for pattern in patterns for path in sorted(run.folder.glob(pattern))]
    if run.model_file.exists():
        return list(dict.fromkeys([*chosen, run.model_file]))
    newest, _ = checkpoint.newest(run.checkpoints)
    return list(dict.fromkeys([*chosen, *(sorted(newest.iterdir()) if newest is not None else ())]))


def _started(campaign: Campaign, task: Task, progress: RowProgress) -> str:
    """When the attempt was begun: as the record says of one that is done, else as the run folder says."""
    if progress.step == Phase.DONE:
        record = campaign.record(task)
        return "" if record is None else record.training.started
    run = Run(campaign.result(task)) if campaign.has_only_results(task) else campaign.run(task)
    return read(Environment, run.environment_file).started if run.environment_file.exists() else ""


@dataclass(frozen=True)
class Chunk:
    """Bytes of a file, from `offset` on; compressed where that helps."""

    name: str
    """Name of the member of the tar file."""
    file: str
    size: int
    sha256: str
    """Size and digest are those of the whole file."""
    offset: int
    length: int
    compressed: bool

    def content(self, packed: bytes) -> bytes:
        """The bytes themselves, never more than `length`. ValueError if these are not what was packed."""
        if not self.compressed:
            return packed
        try:
            return zlib.decompressobj().decompress(packed, max(1, self.length))  # 0 stands for no limit
        except zlib.error as error:
            raise ValueError(f"{self.name} in it cannot be expanded ({error})") from None


@dataclass(frozen=True)
class Entry:
    """A task in the list of a part, as far as it had come."""

    task: Task
    started: str
    progress: tuple[int, ...]
    """As `RowProgress.measured` has it."""
    files: tuple[str, ...]

    def fault(self) -> str | None:
        """Why this can be no task."""
        row = self.task.row
        if row in ("", ".", "..") or not _is_plain(row) or "/" in row:  # it would become a part of paths
            return f"{row[:100]!r} in it names no row"
        if self.task.seed < 0 or len(self.progress) != 4 or self.progress[0] not in (*Phase,) or min(self.progress) < 0:
            return f"{self.task} in it has come to no state that a row can have"
        return None

    @property
    def done(self) -> bool:
        return self.progress[0] == Phase.DONE


def _is_plain(name: str) -> bool:
    """Whether a name is one on every system, and looks like what it is."""
    return name.isprintable() and not set(name) & {"\\", ":"}


@dataclass(frozen=True)
class Manifest:
    """The list of a part."""

    format: str
    units: tuple[Entry, ...]
    chunks: tuple[Chunk, ...]


def write_pack(out: Path, units: Iterable[Unit], part_bytes: int = PART_BYTES) -> list[Path]:
    """Writes OUT-1.tar, OUT-2.tar ... and returns their paths. Refuses to write over a pack that is there."""
    stem = out.with_suffix("") if out.suffix == ".tar" else out
    there = sorted(stem.parent.glob(f"{stem.name}-*.tar"))
    if there:
        raise ArgumentError(f"{there[0]}: is there already; choose another name, or remove it")
    if part_bytes < 8 * OVERHEAD:
        raise ArgumentError(f"a part must have at least {8 * OVERHEAD} bytes, got {part_bytes}")
    written: list[Path] = []
    for number, (entries, chunks) in enumerate(_parts(units, part_bytes - OVERHEAD), 1):
        path, content = stem.parent / f"{stem.name}-{number}.tar", _tar(entries, chunks)
        assert len(content) <= part_bytes, "a part is larger than it may be"
        write_bytes(path, content)
        written.append(path)
    return written


def _parts(units: Iterable[Unit], room: int) -> Iterator[tuple[list[Entry], list[tuple[Chunk, bytes]]]]:
    """For each part, the units that have a chunk in it, and the chunks."""
    entries: list[Entry] = []
    chunks: list[tuple[Chunk, bytes]] = []
    used = 0
    for unit in units:
        entry = Entry(unit.task, unit.started, unit.progress.measured(), tuple(sorted(unit.files)))
        fresh = True
        for name, path in sorted(unit.files.items()):
            content = path.read_bytes()
            offset, digest = 0, hashlib.sha256(content).hexdigest()
            while True:
                cost = HEAD + (len(json.dumps(plain(entry))) + 2 if fresh else 0)
                if used > 0 and room - used < cost + HEAD:
                    yield entries, chunks
                    entries, chunks, used, fresh = [], [], 0, True
                    continue
                piece = content[offset : offset + room - used - cost]
                small = zlib.compress(piece, LEVEL)
                kept = small if len(small) < 0.9 * len(piece) else piece
                chunk = Chunk(f"{len(chunks):06d}", name, len(content), digest, offset, len(piece), kept is small)
                if fresh:
                    entries.append(entry)
                chunks.append((chunk, kept))
                used, fresh, offset = used + len(kept) + cost, False, offset + len(piece)
                if offset >= len(content):
                    break
    if chunks:
        yield entries, chunks


def _tar(entries: list[Entry], chunks: list[tuple[Chunk, bytes]]) -> bytes:
    """A tar file without times and owners: equal files make equal bytes."""
    manifest = plain(Manifest(FORMAT, tuple(entries), tuple(chunk for chunk, _ in chunks)))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in [(MANIFEST, json.dumps(manifest).encode()), *((c.name, data) for c, data in chunks)]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def read_pack(parts: Sequence[Path]) -> tuple[dict[Task, Entry], dict[str, bytes]]:
    """Entries by task, and the whole files by name. ArgumentError for anything that is missing, damaged or no pack, and for parts of
    several packs that are about the same row: files of two attempts are never mixed."""
    units: dict[Task, Entry] = {}
    pieces: dict[str, list[tuple[Chunk, bytes]]] = {}
    for path in parts:
        manifest, members = _members(path)
        for entry in manifest.units:
            if units.setdefault(entry.task, entry) != entry:
                raise ArgumentError(
                    f"{path}: is of another pack than a part before it; unpack one pack after the other"
                )
        for chunk in manifest.chunks:
            try:
                data = chunk.content(members[chunk.name])
            except (KeyError, ValueError) as error:
                why = f"{chunk.name} is not in it" if isinstance(error, KeyError) else error
                raise ArgumentError(f"{path}: is no part of a pack, or damaged: {why}") from None
            pieces.setdefault(chunk.file, []).append((chunk, data))
    files = {name: _joined(name, found) for name, found in pieces.items()}
    for task, entry in units.items():
        missing = [name for name in entry.files if name not in files]
        if missing:
            raise ArgumentError(
                f"{task}: {missing[0]} is in none of these {len(parts)} parts; name all parts of the pack"
            )
    return units, files


def _members(path: Path) -> tuple[Manifest, dict[str, bytes]]:
    try:
        check_plain(path)
        contents: dict[str, bytes] = {}
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isreg() and not member.issparse() else None
                if stream is None:  # a link may lead round and round, and a file with holes may claim any size
                    raise ValueError(f"{member.name[:100]!r} in it is no plain file")
                contents[member.name] = stream.read()
        found = parse_json(contents.pop(MANIFEST))
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ArgumentError(f"{path}: is no part of a pack that this version reads ({FORMAT})")
        manifest = parse(Manifest, found)
        for entry in manifest.units:
            fault = entry.fault()
            if fault is not None:
                raise ValueError(fault)
        return manifest, contents
    except ArgumentError:
        raise
    except (tarfile.TarError, KeyError, ValueError, OSError) as error:
        raise ArgumentError(f"{path}: is no part of a pack, or damaged: {error}") from None


def _joined(name: str, found: list[tuple[Chunk, bytes]]) -> bytes:
    place = PurePosixPath(name)
    inside = len(place.parts) > 1 and place.parts[0] in ROOTS and ".." not in place.parts
    if not inside or place.as_posix() != name or not all(map(_is_plain, place.parts)):
        raise ArgumentError(f"{name[:200]!r}: a pack holds files below {' and '.join(ROOTS)} only")
    content, whole = b"", found[0][0]
    for chunk, data in sorted(found, key=lambda pair: pair[0].offset):
        if chunk.offset == len(content):  # a part that is named twice adds nothing
            content += data
    if len(content) != whole.size:
        raise ArgumentError(
            f"{name}: has {len(content)} of {whole.size} bytes in these parts; name all parts of the pack"
        )
    if hashlib.sha256(content).hexdigest() != whole.sha256:
        raise ArgumentError(
            f"{name}: was changed after it was packed, since its SHA-256 is not that of the list; pack it again"
        )
    return content


def unpack(campaign: Campaign, parts: Sequence[Path]) -> dict[Task, str]:
    """Puts every task of the pack into the tree that is newer than the tree's own. Says what became of each.

    A task is replaced as a whole, never mixed. Newer is a later attempt, unless it would take the place of a finished one and is not
    finished itself; or the same attempt that has come farther. Whatever the tree has otherwise stays as it is.
    """
    units, files = read_pack(parts)
    for task, entry in units.items():
        _check_unit(campaign, task, entry, files)
    said: dict[Task, str] = {}
    for task in in_order(units):
        entry, own = units[task], campaign.progress(task)
        only_record = entry.done and not any(name.endswith(f"/{CERTIFICATES}") for name in entry.files)
        if own.step != Phase.NOT_RUN and not _is_newer(entry, _started(campaign, task, own), own):
            said[task] = f"kept as it is here ({own})"
        elif only_record and (campaign.result(task) / CERTIFICATES).exists():
            said[task] = f"kept as it is here ({own}): the pack has only the record of another attempt"
        else:
            _put(campaign, task, {name: files[name] for name in entry.files})
            said[task] = f"taken from the pack ({campaign.progress(task)})"
    return said


def _is_newer(packed: Entry, started: str, own: RowProgress) -> bool:
    if packed.started == started:
        return packed.progress > own.measured()
    return packed.started > started and not (own.step == Phase.DONE and not packed.done)


def _split(campaign: Campaign, task: Task, names: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Files of the run folder and of the results, each by its name there. ArgumentError for a file that belongs to neither."""
    run, result = campaign.run(task), campaign.result(task)
    work = f"work/{run.folder.relative_to(campaign.work).as_posix()}/"
    results = f"results/{result.relative_to(campaign.results).as_posix()}/"
    inside, kept = dict[str, str](), dict[str, str]()
    for name in names:
        if name.startswith(work):
            inside[name.removeprefix(work)] = name
        elif name.removeprefix(results) in RESULT_FILES:
            kept[name.removeprefix(results)] = name
        else:
            raise ArgumentError(f"{name}: is in the pack as a file of {task}, but is none; pack the row again")
    return inside, kept


def _check_unit(campaign: Campaign, task: Task, entry: Entry, files: dict[str, bytes]) -> None:
    """Refuses a task whose files are not what the list says of them, before anything is written."""
    _, kept = _split(campaign, task, entry.files)
    name = kept.get(EVALUATION)
    if name is None:
        if entry.done:
            raise ArgumentError(f"{task}: is done, as the pack says, but its record is not there; pack the row again")
        return
    try:
        record = parse(RowRecord, parse_json(files[name]))
    except ValueError:
        raise ArgumentError(f"{name}: in the pack, is no evaluation of a row, or damaged; pack the row again") from None
    if (record.row, record.recipe, record.complete) != (task.row, task.recipe, entry.done):
        state = "done" if record.complete else "not done"
        raise ArgumentError(
            f"{name}: in the pack, is about {record.row[:100]!r} ({record.recipe[:100]!r}, {state}), and not what the "
            f"list says; pack the row again"
        )
    if WEIGHTS in kept and hashlib.sha256(files[kept[WEIGHTS]]).hexdigest() not in record.weights.sha256:
        raise ArgumentError(
            f"{kept[WEIGHTS]}: in the pack, are not the weights that its record is about; pack the row again"
        )


def _put(campaign: Campaign, task: Task, files: dict[str, bytes]) -> None:
    """Files of the run folder take the place of all that is there; then those of the results, the record last."""
    run, result = campaign.run(task), campaign.result(task)
    inside, kept = ({short: files[name] for short, name in part.items()} for part in _split(campaign, task, files))
    if inside:
        _replace_run(run, inside)
    for name in RESULT_FILES:
        if kept and name not in kept:
            (result / name).unlink(missing_ok=True)
    for name in sorted(kept, key=RESULT_FILES.index, reverse=True):
        write_bytes(result / name, kept[name])


def _replace_run(run: Run, inside: dict[str, bytes]) -> None:
    run.folder.parent.mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=run.folder.parent))
    try:
        for name, content in inside.items():
            place = holder / "new" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        if run.folder.exists():
            with run.locked():  # refuses while a process works there
                os.replace(run.folder, holder / "before")
        os.replace(holder / "new", run.folder)
    except OSError as error:
        raise ArgumentError(f"{run.folder}: not written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(holder, ignore_errors=True)
