"""Builds sdist and wheel, looks at what is inside, installs the wheel into a clean environment, and tries it there.

    python .ci/check_dist.py            # dist/ in the source tree
    python .ci/check_dist.py FOLDER     # elsewhere

Nothing is downloaded: the build uses the installed setuptools, and the clean environment sees the installed PyTorch and its kin, but
not this source tree. Exit code 0 if all is well; else the first thing that is not stands in the last line.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "autodual"
NEEDED = {"torch", "numpy"}
"""What the library itself depends on; all else is optional."""
IN_SDIST = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "configs/digits.yaml",
    "docs/index.md",
)


def main() -> None:
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "dist"
    with _timed("build"):
        sdist, wheel = _build(folder)
    with _timed("contents"):
        version = _check_metadata(wheel)
        _check_contents(sdist, wheel)
    with tempfile.TemporaryDirectory(prefix="autodual-dist-") as place, _timed("a clean environment"):
        environment = _install(wheel, Path(place) / "venv")
        _try(environment, Path(place), version)
    print(f"{sdist.name} and {wheel.name} are fine")


def _build(folder: Path) -> tuple[Path, Path]:
    """The wheel is built from the sdist, so that it shows what the sdist lacks."""
    for old in folder.glob("autodual-*"):
        old.unlink()
    with tempfile.TemporaryDirectory(prefix="autodual-build-") as place:
        source = Path(place) / "source"  # setuptools leaves build/ and *.egg-info behind
        shutil.copytree(ROOT, source, ignore=_left_out)
        _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source), quiet=True)
    [sdist], [wheel] = folder.glob("autodual-*.tar.gz"), folder.glob("autodual-*.whl")
    return sdist, wheel


def _left_out(folder: str, names: list[str]) -> list[str]:
    """What no distribution is made of: what runs and builds leave, and what only the source tree has."""
    if Path(folder) != ROOT:
        return [name for name in names if name == "__pycache__" or name.endswith(".egg-info")]
    large = ("build", "data", "demo-output", "dist", "results", "runs", "site", "tests")
    return [name for name in names if name.startswith(".") or name in large]


def _check_metadata(wheel: Path) -> str:
    """The version, after a look at what an index would show: name, licence, requirements, and a page that renders."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        found = message_from_bytes(archive.read(name))
        scripts = archive.read(name.replace("METADATA", "entry_points.txt")).decode()
    version = str(found["Version"])
    _expect(f'__version__ = "{version}"' in (PACKAGE / "_version.py").read_text(), f"the wheel has version {version}")
    _expect(
        f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(),
        f"CITATION.cff has another version than {version}",
    )
    _expect(f"\n## {version} - " in (ROOT / "CHANGELOG.md").read_text(), f"CHANGELOG.md has no section for {version}")
    _expect(found["Name"] == "autodual" and found["License-Expression"] == "MIT", "name or licence is missing")
    _expect(
        found["License-File"] == "LICENSE" and found["Requires-Python"] == ">=3.11", "licence file or Python is missing"
    )
    always = {each.split(">")[0] for each in found.get_all("Requires-Dist", []) if "extra ==" not in each}
    _expect(always == NEEDED, f"requires {always}, not {NEEDED}")
    _expect("autodual = autodual.cli.app:main" in scripts, "there is no command autodual")
    _expect(found["Description-Content-Type"] == "text/markdown", "the description is not said to be Markdown")
    _check_page(str(found.get_payload()))
    return version


def _check_page(text: str) -> None:
    from markdown import markdown

    page = markdown(text, extensions=["tables", "fenced_code"])
    for part in ("<h1>AutoDual</h1>", "<table>", "<code", "<h2>Try it</h2>"):
        _expect(part in page, f"the description does not render: {part} is missing")


def _check_contents(sdist: Path, wheel: Path) -> None:
    own = {str(file.relative_to(PACKAGE.parent)) for file in PACKAGE.rglob("*") if file.is_file()}
    own = {name for name in own if "__pycache__" not in name}
    for name in ("py.typed", "assets/digits.npz", "assets/digits_robust.npz", "report/templates"):
        _expect(any(each.startswith(f"autodual/{name}") for each in own), f"{name} is not where this script looks")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    _expect(inside == own, f"the wheel and src/ differ in {sorted(inside ^ own)[:5]}")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    missing = {*IN_SDIST, *(f"src/{name}" for name in own)} - names
    _expect(not missing, f"the sdist lacks {sorted(missing)[:5]}")
    odd = [name for name in names if name.startswith(("tests", "results", ".")) or name.endswith(".pyc")]
    _expect(not odd, f"the sdist has {odd[:5]}")
    print(f"wheel {wheel.stat().st_size / 2**10:.0f} KiB, sdist {sdist.stat().st_size / 2**10:.0f} KiB")


def _install(wheel: Path, place: Path) -> Path:
    """The folder of commands of a fresh environment with the wheel, and behind it what is installed here."""
    _run(sys.executable, "-m", "venv", "--without-pip", str(place))
    commands = place / ("Scripts" if os.name == "nt" else "bin")
    python = str(commands / "python")
    offline = ("--no-deps", "--no-index", "--disable-pip-version-check")
    _run(sys.executable, "-m", "pip", "--quiet", "--python", python, "install", *offline, str(wheel))
    site = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    there = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # Paths of a .pth file come last, and .pth files there are not read: an editable install of the source tree stays out of sight.
    (Path(site) / "dependencies.pth").write_text("".join(f"{path}\n" for path in sorted(there)))
    return commands


TRIED = """
import json, pathlib, sys
import autodual as ad
assert pathlib.Path(ad.__file__).is_relative_to(sys.prefix), ad.__file__
images, labels = ad.load_digits("test")
found = ad.certify(ad.load_digits_network(), images[:20], labels[:20], ad.LinfBall(0.05, clip=(0.0, 1.0)))
try:
    ad.load_pretrained("mnist-small-0.1")
    refusal = ""
except ad.ArgumentError as error:
    refusal = str(error)
print(json.dumps({"version": ad.__version__, "certified": int(found.certified.sum()), "refusal": refusal}))
"""
SHORT = ("--dataset", "digits", "--model", "digits", "--eps", "0.05", "--clip", "0", "1", "--k", "4", "--epochs", "1", "--limit-train",
         "100", "--limit-test", "10", "--evaluate-every", "0", "--skip-curve", "--device", "cpu")  # fmt: skip


def _try(commands: Path, place: Path, version: str) -> None:
    """What a new user would do first, away from the source tree."""
    autodual = str(commands / "autodual")
    said = _run(autodual, "--version", cwd=place)
    _expect(said == f"autodual {version}\n", f"autodual --version says {said!r}")
    found = json.loads(_run(str(commands / "python"), "-c", TRIED, cwd=place))
    _expect(found["version"] == version, f"imported version {found['version']}")
    _expect(found["certified"] >= 15, f"{found['certified']} of 20 digits are certified")
    _expect("do not come with the installed package" in found["refusal"], f"load_pretrained says {found['refusal']!r}")
    trained = json.loads(_run(autodual, "train", *SHORT, "--out", "run", "--json", cwd=place))
    _expect(trained["examples"] == 10 and 0 <= trained["robust_error"] <= 1, f"training says {trained}")
    page = Path(json.loads(_run(autodual, "report", "run", "--json", cwd=place))["file"])
    _expect((place / page).read_text().startswith("<!"), "no report")


def _run(*command: str, cwd: Path | None = None, quiet: bool = False) -> str:
    """What a command prints. Variables that lead to this source tree do not reach it."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "AUTODUAL_RESULTS")}
    if quiet and "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]  # of the build, which imports nothing of ours
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    if done.returncode != 0:
        print(done.stdout[-4000:], done.stderr[-4000:], file=sys.stderr)
        raise SystemExit(f"error: {' '.join(command[:4])} ... ended with exit code {done.returncode}")
    return done.stdout


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.1f} s", flush=True)


def _expect(fine: bool, problem: str) -> None:
    if not fine:
        raise SystemExit(f"error: {problem}")


if __name__ == "__main__":
    main()
