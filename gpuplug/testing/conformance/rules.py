"""The rules of the conformance kit, one function each: they pass, or fail with words that teach."""

from __future__ import annotations

import ast
import inspect
import sys
from typing import TYPE_CHECKING, Any, Final

from gpuplug.core.identity import is_resource_name
from gpuplug.model import Declined
from gpuplug.options import flag, parse, written
from gpuplug.plugins import hookspecs
from gpuplug.plugins.answers import VERSION_NAME
from gpuplug.testing.conformance.asking import fail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpuplug.model import Gpu
    from gpuplug.plugins.driver import LoadedDriver
    from gpuplug.testing.conformance.asking import Answers

MAX_REASON: Final = 200
"""Characters of a reason: it is one line in a table."""
_PURE: Final = (
    "gpuplug reads what gpuplug_sysfs_attributes and gpuplug_companion_nodes name, and hands it over in"
)

__tracebackhide__ = True  # a failure shows the check, and not how it was made


def nothing(_: object) -> None:
    """Ask for no more than that there is an answer."""


# how it is packaged


def installed(driver: object, entry_point: str) -> None:
    """See that an entry point leads to the driver."""
    if not entry_point:
        fail(
            f"no installed entry point in the group {hookspecs.PROJECT!r} leads to {driver!r}",
            "gpuplug finds drivers by their entry points alone",
            'have `[project.entry-points.gpuplug]` with `foogpu = "gpuplug_foogpu"` in pyproject.toml,'
            " install the package (`pip install -e .`), and give `driver` what that leads to;"
            " or set `name`, to test it without being installed",
        )


def states_version(driver: object) -> None:
    """See that the driver says for which hooks it was written."""
    version = getattr(driver, VERSION_NAME, None)
    if version is None:
        fail(
            "the driver does not state the version of the hooks that it was written for",
            "a gpuplug that is older, or much newer, would fail at the first hook that it does not know,"
            " where it could have told people what to update",
            f"have `{VERSION_NAME} = {hookspecs.VERSION}` in the module that the entry point leads to",
        )


def imports_only_the_top(driver: object) -> None:
    """See that the driver's modules import nothing of gpuplug but gpuplug itself."""
    if inspect.ismodule(driver):
        package = driver.__name__.partition(".")[0]
        mine = {n: each for n, each in sys.modules.items() if n.partition(".")[0] == package}
    else:
        name = type(driver).__module__
        mine = {name: sys.modules[name]} if name in sys.modules else {}
    for name, each in sorted(mine.items()):
        try:
            source = inspect.getsource(each)
        except (OSError, TypeError):
            continue
        for found in _imported(source):
            if found.startswith("gpuplug.") and not found.startswith("gpuplug.testing"):
                fail(
                    f"{name} imports {found}",
                    "only what `from gpuplug import …` gives is promised to stay; the rest may be another in"
                    " the next version",
                    "import it from gpuplug itself; if it is not there, it is not meant for drivers",
                )


def _imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def options_can_be_typed(driver: LoadedDriver) -> None:
    """See that each default can be written and read back."""
    for option in driver.options:
        text = written(option.default)
        if text == "" and option.type is not str:
            continue  # nothing to type: it stands for "not given"
        try:
            back: Any = parse(option, text)
        except ValueError as error:
            back = f"an error: {text!r} {error}"
        if back != option.default:
            fail(
                f"option {flag(driver.name, option)}: its default {option.default!r} is shown as {text!r},"
                f" and that is read as {back!r}",
                "an operator who types what the help shows gets something else",
                "give it a default that its type makes of a text",
            )


# which GPUs it claims


def has_gpus(gpus: Sequence[Gpu]) -> None:
    """See that there is something to check."""
    if not gpus:
        fail(
            "the test names no GPU that the driver must claim",
            "most checks need one: a driver that claims nothing passes them, and serves nothing",
            'set `gpus`, one for each kind that it knows: `gpus = [make_gpu("foogpu")]`',
        )


def claims(gpu: Gpu, claim: object) -> None:
    """See that the driver claims a GPU of its own."""
    if not isinstance(claim, str):
        said = "declines" if isinstance(claim, Declined) else "does not claim"
        fail(
            f"the driver {said} {gpu!r} ({claim!r})",
            "it is in `gpus`, so it should be advertised, and is not",
            "let gpuplug_resource_name return a name such as 'example.com/gpu' for it",
        )


def declines(gpu: Gpu, claim: object) -> None:
    """See that the driver declines a GPU that is not to be offered."""
    if not isinstance(claim, Declined):
        fail(
            f"the driver answers {claim!r} for {gpu!r}",
            "it is in `declined`: with None a fallback driver may offer it, with a name it is advertised",
            "let gpuplug_resource_name return Declined('why') for it",
        )


def leaves_alone(gpu: Gpu, claim: object) -> None:
    """See that the driver does not claim what is another's."""
    if claim is not None:
        fail(
            f"the driver claims {gpu!r} ({claim!r})",
            "of two drivers that claim a GPU only one gets it, and the operator sees a problem; a GPU that"
            " is kept for virtual machines would be offered to containers",
            "let gpuplug_resource_name look at gpu.kernel_driver, and return None for those that it does"
            " not know",
        )


def resource_name(gpu: Gpu, answers: Answers) -> None:
    """See that the kubelet takes the name."""
    if not isinstance(answers.claim, str) or not is_resource_name(answers.claim):
        fail(
            f"{gpu.address}: {answers.claim!r} is no name of an extended resource",
            "the kubelet refuses to register it, and no GPU of that name is advertised",
            "answer with domain/name, such as 'example.com/gpu': a DNS name of yours in lower case, not of"
            " kubernetes.io, and up to 63 letters, digits, '-', '_' and '.', the first and the last of them"
            " a letter or digit; take nothing into it from sysfs that you have not looked at",
        )


# how it answers


def same(gpu: Gpu, first: Answers, second: Answers) -> None:
    """See that two answers are the same."""
    if first != second:
        fail(
            f"{gpu.address}: asked twice, the driver said\n    {first}\n  and then\n    {second}",
            "gpuplug asks once and keeps the answer while the GPU stays the same, so which one counts"
            " would be chance",
            "make the answer of `gpu` and `settings` alone: no counter, no cache that changes it, no"
            " randomness, no set whose order shows",
        )


def unchanged(gpu: Gpu, before: tuple[str, str], after: tuple[str, str]) -> None:
    """See that the arguments are as they were."""
    for was, now in zip(before, after, strict=True):
        if was != now:
            fail(
                f"{gpu.address}: the driver changed what it was given, from\n    {was}\n  to\n    {now}",
                "gpuplug hands out values that cannot be changed: the hook raises, and the GPU is left out",
                "make a new value: dict(gpu.attributes), or dataclasses.replace(gpu, …)",
            )


def no_effects(gpu: Gpu, effects: Sequence[str]) -> None:
    """See that nothing was opened or started."""
    if effects:
        fail(
            f"{gpu.address}: while it was asked, the driver did this: {', '.join(dict.fromkeys(effects))}",
            "the process that serves must not open a GPU node (that can wake the GPU, or keep it from being"
            " unbound), and a file that hangs holds up all drivers",
            f"name the file in gpuplug_sysfs_attributes: {_PURE} gpu.attributes",
        )


def no_looks(gpu: Gpu, looks: Sequence[str]) -> None:
    """See that nothing but the arguments was looked at."""
    if looks:
        fail(
            f"{gpu.address}: while it was asked, it asked for this: {', '.join(dict.fromkeys(looks))}",
            "gpuplug asks again only when the GPU changes, so what depends on anything else is out of date,"
            " and below --prefix the machine's files are elsewhere",
            f"decide by `gpu` and `settings` alone: {_PURE} gpu.attributes and gpu.companions; what the"
            " operator is to choose is an option (gpuplug_options)",
        )


def no_print(gpu: Gpu, notes: Sequence[str]) -> None:
    """See that nothing was printed; the façade that drivers are asked through notes what was."""
    for note in notes:
        fail(
            f"{gpu.address}: {note}",
            "gpuplug keeps it out of its output, which programs read, and tells of it as a problem",
            "take the print away; what people should know goes into Verdict(…, reason) or Declined(reason)",
        )


def quick(gpu: Gpu, seconds: float, limit: float) -> None:
    """See that the hooks took no time to speak of."""
    if seconds > limit:
        fail(
            f"{gpu.address}: all hooks together took {1000 * seconds:.1f} ms, the best of several tries",
            f"a node may have 128 GPUs, and a list must be out at once: the limit is {1000 * limit:.0f} ms,"
            " and a hook that takes seconds is not asked again",
            "do once what need not be done for every GPU: compile expressions and build tables when the"
            " module is imported",
        )


# what people read


def reasons(gpu: Gpu, answers: Answers) -> None:
    """See that an unhealthy GPU says why."""
    verdict = answers.verdict
    if verdict is not None and (not verdict.healthy or verdict.reason):
        _reason(gpu, verdict.reason, "Verdict(healthy=False, reason=…)")


def reason_of_decline(gpu: Gpu, claim: object) -> None:
    """See that a GPU that is declined says why."""
    if isinstance(claim, Declined):
        _reason(gpu, claim.reason, "Declined(reason)")


def _reason(gpu: Gpu, reason: str, where: str) -> None:
    if not reason.strip() or len(reason) > MAX_REASON or not reason.isprintable():
        fail(
            f"{gpu.address}: {where} has the reason {reason[:100]!r}",
            "whoever looks for why the GPU is not there reads this, in one line of the log and of"
            " `gpuplug inspect`",
            f"say what is wrong in one line of at most {MAX_REASON} characters; a text of sysfs may have line"
            " breaks: put it in with !r",
        )
