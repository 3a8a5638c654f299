"""What fails again and again in the same way is said once, and counted until it is different."""

from __future__ import annotations


class Repeats:
    """The last thing that was said of each subject, and how often it has been so since."""

    __slots__ = ("_said",)

    def __init__(self) -> None:
        self._said: dict[str, tuple[str, int]] = {}

    def news(self, subject: str, text: str) -> str | None:
        """Return what to say: nothing if the same was said last, else the text, with the count of before.

        :param text: what is so now; empty if nothing is wrong, which is said only if something was.
        """
        before, times = self._said.get(subject, ("", 0))
        if text == before:
            if text:
                self._said[subject] = (text, times + 1)
            return None
        if text:
            self._said[subject] = (text, 1)
        else:
            del self._said[subject]
        since = f"before that, {times} times: {before}" if times > 1 else ""
        return "; ".join(filter(None, (text or "well again", since)))
