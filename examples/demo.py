"""Train a network that can be certified, and its standard-trained twin, on the embedded digits; certify, attack and report both.

python examples/demo.py [--out demo-output]          (resumes if it was interrupted)
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from autodual._files import write_json
from autodual.cli.terminal import Display
from autodual.report import write_report
from autodual.runs.config import TrainConfig, read_yaml
from autodual.training.fitting import train

CONFIG = Path(__file__).parents[1] / "configs" / "digits.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"))
    out: Path = parser.parse_args().out
    robust = TrainConfig.from_mapping(read_yaml(CONFIG), str(CONFIG))
    configs = {"standard": robust.with_changes(engine="none"), "robust": robust}
    found = {}
    for name, config in configs.items():
        started = time.perf_counter()
        display = Display(stop=lambda: False)
        with display.bars:
            found[name] = train(config, out / name, resume=(out / name).exists(), watch=display.watch())
        print(
            f"{name:9s} error {found[name]['error']:7.2%}   PGD error {found[name]['pgd_error']:7.2%}   "
            f"robust error {found[name]['robust_error']:7.2%}   ({time.perf_counter() - started:.0f} s)",
            flush=True,
        )
    evaluation = out / "robust" / "evaluation.json"
    twin = {key: found["standard"][key] for key in ("error", "robust_error", "pgd_error")}
    write_json(evaluation, json.loads(evaluation.read_text(encoding="utf-8")) | {"standard": twin})
    print(
        f"l-infinity {robust.eps:g}, 360 test images; the report is {write_report([out / 'robust'], out / 'report.html')}"
    )


if __name__ == "__main__":
    main()
