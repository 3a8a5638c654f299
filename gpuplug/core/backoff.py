"""How long to wait before the next try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FLOOR: Final = 0.01
"""Seconds: the shortest pause of any retry loop."""
CEILING: Final = 30.0
"""Seconds: the longest."""
_CALM: Final = 4
_DOUBLINGS: Final = 12  # 0.01 s doubled so often is past the ceiling


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double from 10 ms up to 30 s, each shortened by chance to between a half and all of it.

    The first tries are close together because the kubelet makes its socket file a moment
    before it listens on it; the chance keeps many nodes from knocking in step.
    """

    failures: int = 0

    def delay(self, chance: float) -> float:
        """Return the seconds to wait, for a ``chance`` from 0 to 1."""
        longest = min(CEILING, FLOOR * 2 ** min(self.failures, _DOUBLINGS))
        return float(max(FLOOR, longest * (0.5 + 0.5 * chance)))

    def failed(self) -> Backoff:
        """Return the state after one more failure."""
        return Backoff(self.failures + 1)

    def after(self, success: float, *, pause: float, steady: float) -> Backoff:
        """Return the state after a success of so many seconds that followed a pause of so many.

        One that was ``steady`` makes the next failure the first one. Two processes that take one
        resource from each other are each left alone for as long as the other one pauses: that
        alone must not make them quick again, so a success must outlast the pause four times, too.
        """
        return Backoff() if success >= max(steady, _CALM * pause) else self
