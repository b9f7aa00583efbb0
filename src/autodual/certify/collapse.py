"""Networks that have given up: one answer for everything, which is easily certified and says nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

FEWEST = 5
"""Examples of other classes that it takes to tell a collapsed network from a few unlucky examples."""
NEARLY = 0.02
"""A collapsed network gives other answers for no more than this part of the examples that have other labels."""


def collapse(
    predicted: Sequence[int],
    labels: Sequence[int],
    margins: Sequence[float | None] | None = None,
    classes: Sequence[str] = (),
) -> str | None:
    """A sentence that names a collapsed network by what it does; None for any other.

    Collapsed: it predicts one class for (nearly) all examples although the examples have several. Scores that are all equal, or not
    numbers, look like this, too, since the largest of them is then always the first. margins: NaN or None where none is finite.
    """
    if not predicted:
        return None
    chosen, times = Counter(predicted).most_common(1)[0]
    others = sum(label != chosen for label in labels)
    if others < FEWEST or len(predicted) - times > NEARLY * others:
        return None
    name = f"{chosen} ({classes[chosen]})" if _tells_more(chosen, classes) else str(chosen)
    share = f"all {times} examples" if times == len(predicted) else f"{times} of {len(predicted)} examples"
    why = ""
    if margins and not any(margin is not None and math.isfinite(margin) for margin in margins):
        why = ", and none of its margins is a finite number"
    return (
        f"collapsed: it predicts class {name} for {share}, although {others} of them have another label{why}. A "
        f"constant answer is easy to certify and worth nothing"
    )


def _tells_more(index: int, classes: Sequence[str]) -> bool:
    return 0 <= index < len(classes) and classes[index] != str(index)
