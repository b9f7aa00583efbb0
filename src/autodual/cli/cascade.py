"""The figures of a cascade in a line or two: those that stand together are about the same images."""

from __future__ import annotations

import sys
from typing import Any

from autodual._errors import ArgumentError

CONTRADICTION = (
    "{} images are soundly certified and yet broken by the attack, which cannot be: do not trust these certificates"
)

AS_RUN = "sound_certified_error_as_run"
"""A record of an earlier version lacks it."""


def tell_cascade(name: str, found: dict[str, Any]) -> None:
    """found: as in cascade.json, with or without an attack; one on the first images only has a line of its own."""
    examples, attacked = found["examples"], found.get("attacked_examples")
    if attacked != examples:
        print(f"{name}: {_errors(found)} ({examples} images)")
    if attacked is not None:
        which = name if attacked == examples else "Attacked"
        images = f"{attacked} images" if attacked == examples else f"the first {attacked} of them"
        print(f"{which}: {_errors(_on_attacked(found), found)} ({images})")
    if found.get("collapsed"):
        print(f"warning: the cascade has {found['collapsed']}", file=sys.stderr)
    if "broken_proofs" in found and _number(found, "broken_proofs") > 0:
        print(CONTRADICTION.format(found["broken_proofs"]), file=sys.stderr)


def _on_attacked(found: dict[str, Any]) -> dict[str, Any]:
    """A record of an earlier version has figures of all images only: those of others do not stand beside an attack."""
    rates = found.get("on_attacked", found if found["attacked_examples"] == found["examples"] else {})
    if not isinstance(rates, dict):
        raise _damaged("on_attacked", rates)
    return rates


def _errors(rates: dict[str, Any], attack: dict[str, Any] | None = None) -> str:
    parts = [_error("error", rates), _error("stage-certified error", rates)]
    if attack is not None:
        claims = f"({_number(attack, 'broken_claims')} claims broken)"
        parts.append(f"attacked error {_number(attack, 'attacked_error'):.2%} {claims}")
    as_run = f" (as run: {_number(rates, AS_RUN):.2%})" if AS_RUN in rates else ""
    parts.append(f"{_error('soundly certified error', rates)}{as_run}")
    return ", ".join(part for part in parts if part)


def _error(name: str, rates: dict[str, Any]) -> str:
    key = name.replace("soundly", "sound").replace("-", "_").replace(" ", "_")
    return f"{name} {_number(rates, key):.2%}" if key in rates else ""


def _number(record: dict[str, Any], key: str) -> float:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _damaged(key, value)
    return value


def _damaged(key: str, value: Any) -> ArgumentError:
    return ArgumentError(f"cascade.json has {value!r} as {key}: it is damaged; remove it, and it will be made anew")
