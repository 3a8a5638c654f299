"""Fixtures of the container suite: one image and one cluster for all tests, and the numbers at the end.

The suite never skips: where the machine lacks something it stops at once, with one line that says what.
"""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.node.harness.cgroups import cgroups
from tests.node.harness.needs import MissingRequirementError, check_machine
from tests.node.harness.releases import RELEASES

from .harness import image
from .harness.cluster import Cluster, ControlPlane, build_all, running
from .harness.needs import check_tools

RELEASE = RELEASES[-1]
VERSION = version("gpuplug")
_LINES = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_LINES] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stop here where the machine can't run any of it."""
    if any(Path(__file__).parent in item.path.parents for item in items):
        with _one_line():
            check_machine()
            cgroups()
            check_tools()


@contextmanager
def _one_line() -> Iterator[None]:
    """End the whole run with the message of a missing requirement, and nothing around it."""
    try:
        yield
    except MissingRequirementError as missing:
        pytest.exit(str(missing).replace("tests/node", "tests/container", 1), returncode=1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash[_LINES]:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config) -> list[str]:
    """Give the lines to print at the end of the run."""
    return pytestconfig.stash[_LINES]


@dataclass(frozen=True, slots=True)
class Images:
    """The image as the Containerfile makes it, and the one that an upgrade goes to."""

    store: image.Store
    reference: str
    archive: Path
    next_reference: str
    next_archive: Path


@pytest.fixture(scope="session")
def images() -> Iterator[Images]:
    with tempfile.TemporaryDirectory(prefix="gpuplug-container-") as folder, _one_line():
        store = image.Store(Path(folder) / "store")
        try:
            base = image.import_base(store)
            context = image.context(Path(folder) / "context")
            yield _build(store, base, context)
        finally:
            store.close()


def _build(store: image.Store, base: str, context: Path) -> Images:
    reference = f"localhost/gpuplug:{VERSION}"
    arguments = {"BASE": base, "PIP_NO_INDEX": "1", "VERSION": VERSION}
    store.build(reference, context, context / "Containerfile", arguments)
    later = f"{reference}-next"
    file = context / "Later"
    file.write_text(f"FROM {reference}\nLABEL org.opencontainers.image.version={VERSION}-next\n")
    store.build(later, context, file, {})
    return Images(store, reference, store.archive(reference), later, store.archive(later, packed=False))


@pytest.fixture(scope="session")
def plane() -> ControlPlane:
    with _one_line():
        return build_all(RELEASE)


@pytest.fixture(scope="session")
async def cluster(images: Images, plane: ControlPlane) -> AsyncIterator[Cluster]:
    async with running(RELEASE, plane, [images.archive, images.next_archive]) as made:
        yield made
