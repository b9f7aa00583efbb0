"""The page in headless Chromium: seen as meant, silent, asking nobody for anything.

Screenshots, light and dark, wide and narrow, are left in $AUTODUAL_SCREENSHOTS if that is set, else in pytest's folder.
"""

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from autodual.report import write_report

pytest.importorskip("jinja2", reason="the report needs Jinja2")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHROMIUM, reason="neither chromium nor chromium-browser is installed: apt-get install chromium"
    ),
]
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--host-resolver-rules=MAP * ~NOTFOUND"),
    *("--allow-file-access-from-files", "--virtual-time-budget=3000", "--enable-logging=stderr"),
)
SCHEMES = {"dark": 0, "light": 1}

# A page around the page, which measures it: the report itself runs no scripts.
PROBE = """<!doctype html><iframe id=page src="{page}" style="width:{width}px;height:2000px;border:0"></iframe><pre id=found></pre>
<script>addEventListener("load", () => {{
  const inside = document.getElementById("page").contentDocument, root = inside.documentElement;
  const boxes = {{}};
  for (const section of inside.querySelectorAll("section")) {{
    const box = section.getBoundingClientRect();
    boxes[section.id] = [box.width, box.height, section.checkVisibility()];
  }}
  const images = [...inside.images].every(image => image.complete && image.naturalWidth > 0);
  const beyond = element => element.getBoundingClientRect().right > root.clientWidth + 1;
  const wide = [...inside.querySelectorAll("body *")].filter(element => !element.closest(".scroll") && beyond(element));
  const right = element => element.getBoundingClientRect().right;
  const lost = [...inside.querySelectorAll("div.scroll")].filter(box => {{
    box.scrollLeft = 1e6;
    return right(box.querySelector("table")) > right(box) + 1;
  }});
  const result = {{
    boxes, images, lost: lost.length, scroll: root.scrollWidth, client: root.clientWidth,
    wide: wide.map(e => e.outerHTML.slice(0, 200))
  }};
  document.getElementById("found").textContent = JSON.stringify(result);
}});</script>"""


def browse(folder: Path, address: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, address.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def console(result: subprocess.CompletedProcess[str]) -> list[str]:
    return re.findall(r"CONSOLE.*", result.stderr)


def requests(netlog: Path) -> set[str]:
    """What the page asked for outside; the browser's own questions have an initiator that is "not an origin"."""
    events = [line for line in netlog.read_text().splitlines() if '"initiator":' in line]
    asked = [line for line in events if '"initiator":"not an origin"' not in line]
    return {url for line in asked for url in re.findall(r'"url":"((?:https?|wss?|ftp):[^"]+)"', line)}


@pytest.fixture
def page(runs: list[Path], tmp_path: Path) -> Path:
    return write_report(runs, tmp_path / "report.html")


@pytest.mark.parametrize("width", [1280, 400, 360])
def test_sections_are_seen_and_the_page_never_scrolls_sideways(page: Path, tmp_path: Path, width: int) -> None:
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(page=page.as_uri(), width=width))
    dom = browse(tmp_path, probe, "--dump-dom", "--window-size=1400,2100").stdout
    found = json.loads(unescape(dom.partition('id="found">')[2].partition("</pre>")[0]))
    assert len(found["boxes"]) >= 1 + 2 * 8
    for size in found["boxes"].values():
        assert size[0] > min(0.85 * width, 900)
        assert size[1] > 100
        assert size[2] is True
    assert found["images"]
    assert found["client"] == width
    assert found["scroll"] <= width
    assert found["wide"] == []
    assert found["lost"] == 0  # every table can be scrolled to its last column


def test_screenshots_without_console_messages_or_requests(page: Path, tmp_path: Path) -> None:
    target = Path(os.environ.get("AUTODUAL_SCREENSHOTS", tmp_path / "screenshots")).resolve()
    target.mkdir(parents=True, exist_ok=True)
    for scheme, number in SCHEMES.items():
        for width, height in ((1280, 11000), (360, 16000)):
            picture, netlog = target / f"report-{scheme}-{width}.png", tmp_path / f"{scheme}-{width}.json"
            look = (f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={number}")
            result = browse(tmp_path, page, f"--screenshot={picture}", f"--log-net-log={netlog}", *look)
            assert picture.stat().st_size > 100_000
            assert console(result) == []
            assert requests(netlog) == set()
    dark, light = ((target / f"report-{scheme}-1280.png").read_bytes() for scheme in SCHEMES)
    assert dark != light


def test_messages_and_requests_would_have_been_noticed(tmp_path: Path) -> None:
    bad, netlog = tmp_path / "bad.html", tmp_path / "net.json"
    bad.write_text('<script>console.error("loud")</script><img src="http://127.0.0.1:9/outside.png">')
    result = browse(tmp_path, bad, "--dump-dom", f"--log-net-log={netlog}")
    assert any("loud" in line for line in console(result))
    assert requests(netlog) == {"http://127.0.0.1:9/outside.png"}


def test_it_prints(page: Path, tmp_path: Path) -> None:
    browse(tmp_path, page, f"--print-to-pdf={tmp_path / 'report.pdf'}")
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert 5 < len(re.findall(rb"/Type\s*/Page\b", content)) < 40
