"""What the site's hooks make of a page, and the pictures that are kept."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
from mkdocs.exceptions import PluginError

import autodual as ad

DOCS = Path(__file__).parents[2] / "docs"


def _hook(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"hook_{name}", DOCS / "hooks" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class TestMathematics:
    hook = staticmethod(lambda html: _hook("mathematics").on_page_content(html))

    def test_inline_and_display(self) -> None:
        html = self.hook(
            r'<p><span class="arithmatex">\(x &lt; y_1\)</span></p><div class="arithmatex">\[\frac{a}{b}\]</div>'
        )
        assert html.count("<math") == 2
        assert "<msub><mi>y</mi><mn>1</mn></msub>" in html
        assert 'display="block"' in html
        assert "arithmatex" not in html

    def test_other_text_stays(self) -> None:
        assert self.hook("<p>costs $5</p>") == "<p>costs $5</p>"

    def test_what_is_not_understood_is_refused(self) -> None:
        with pytest.raises(ValueError, match="does not understand"):
            self.hook(r'<div class="arithmatex">\[\begin{aligned} a &amp;= b \end{aligned}\]</div>')

    @pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
    def test_every_equation_of_the_pages_is_understood(self, page: Path) -> None:
        text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        display = re.findall(r"\$\$(.+?)\$\$", text, re.DOTALL)
        inline = re.findall(r"(?<![\\$])\$(?!\s)([^$\n]+?)(?<!\s)\$", re.sub(r"\$\$.+?\$\$", "", text, flags=re.DOTALL))
        marked = [rf'<div class="arithmatex">\[{each}\]</div>' for each in (*display, *inline)]
        assert self.hook("".join(marked)).count("<math") == len(marked)


class TestPictures:
    def test_those_that_name_the_palette_stand_in_the_page(self) -> None:
        html = _hook("pictures").on_page_content('<img alt="a &quot;b&quot;" src="../figures/proof-hidden.svg" />')
        assert html.startswith('<div class="picture"><svg aria-label="a &quot;b&quot;"')

    def test_others_are_linked(self) -> None:
        linked = '<img alt="c" src="figures/two-stage-cascade.svg" />'
        assert _hook("pictures").on_page_content(linked) == linked

    def test_kept_ones_are_those_that_are_drawn(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If this fails, the script or the record has changed: run `python docs/hooks/draw.py`."""
        draw = _hook("draw")
        monkeypatch.setattr(draw, "FIGURES", tmp_path)
        draw.main()
        drawn = sorted(path.name for path in tmp_path.iterdir())
        assert {"architecture-flow.svg", "certified-curve.svg", "proof-hidden.svg"} <= set(drawn)
        assert [
            name for name in drawn if (tmp_path / name).read_bytes() != (DOCS / "figures" / name).read_bytes()
        ] == []


class TestTables:
    def test_every_field_of_the_config_is_listed(self) -> None:
        page = _hook("tables").on_page_markdown((DOCS / "config.md").read_text(encoding="utf-8"))
        assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [each.name for each in fields(ad.TrainConfig)]
        assert "<!-- table" not in page

    def test_every_command_is_listed_with_its_options(self) -> None:
        page = _hook("tables").on_page_markdown((DOCS / "commands.md").read_text(encoding="utf-8"))
        commands = re.findall(r"^###? autodual (.+)$", page, re.MULTILINE)
        assert {"train", "certify", "attack", "report", "bench", "data fetch", "reproduce pack"} <= set(commands)
        assert "--eps-part" in page.partition("## autodual train")[2].partition("\n## ")[0]
        assert "--check" in page.partition("## autodual certify")[2].partition("\n## ")[0]
        assert "<!-- table" not in page


class TestOffline:
    @pytest.mark.parametrize(
        "html",
        [
            '<script src="https://else.where/a.js">',
            '<link rel="stylesheet" href="//else.where/a.css">',
            '<img src="http://a/b.png">',
        ],
    )
    def test_what_would_be_fetched_is_refused(self, html: str) -> None:
        with pytest.raises(PluginError, match="another site"):
            _hook("offline").on_post_page(html, page="page")

    def test_links_and_own_files_are_fine(self) -> None:
        html = '<a href="https://else.where">x</a><script src="assets/a.js"></script><link rel="icon" href="a.png">'
        assert _hook("offline").on_post_page(html, page="page") == html

    def test_every_module_of_the_registry_is_listed(self) -> None:
        """In a process of its own: other tests register operations, too."""
        program = (
            "import json, runpy; tables = runpy.run_path('docs/hooks/tables.py'); from autodual.dual.base import REGISTRY; "
            "names = [each.__name__ for each in (*REGISTRY.builders, *REGISTRY.rewrites) if isinstance(each, type)]; "
            "page = tables['on_page_markdown'](open('docs/capture.md', encoding='utf-8').read()); "
            "print(json.dumps([names, page, tables['paragraph']()]))"
        )
        source = str(Path(ad.__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=DOCS.parent, env={**os.environ, "PYTHONPATH": source}, capture_output=True, check=True
        )  # fmt: skip
        names, page, paragraph = json.loads(done.stdout)
        assert len(names) > 60
        assert [name for name in names if f"<code>{name}</code>" not in page] == []
        for operation in ("cat", "softplus", "view_as", "x[...]"):
            assert f"<code>{operation}</code>" in page
        stems = {re.sub("[123]d$", "", name) for name in names}
        assert [stem for stem in stems if not re.search(rf"\b{stem}(\b|/|[123]d)", paragraph)] == []
        assert f"{len(set(names))} modules of PyTorch" in " ".join(paragraph.split())
        readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
        assert paragraph in readme, "an operation was added or taken away: run `python docs/hooks/tables.py`"
