"""Gets packages of the distribution and unpacks them, without installing anything.

apt runs on folders of its own, so the machine's lists and sources stay as they are. Where packages come from
is taken from the machine's own sources: the same places and keys, with another suite where that is needed.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .needs import MissingRequirementError

_ETC = Path("/etc/apt")
_RELEASE = re.compile(r"[a-z]+")
_ONE_LINE = re.compile(r"^deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s+", re.MULTILINE)

_NEWEST_WINS = "Package: *\nPin: release a=*\nPin-Priority: 500\n"
"""Otherwise backports would only be taken where nothing else has the package."""


@dataclass(frozen=True, slots=True)
class Source:
    """A place that the machine gets packages from."""

    uri: str
    suites: tuple[str, ...]
    signed_by: str = ""
    """The key file, as an apt source names it; empty for what the machine trusts anyway."""

    def stanza(self, suite: str) -> str:
        """Name this place with another suite, in apt's own format."""
        signed = f"Signed-By: {self.signed_by}\n" if self.signed_by else ""
        return f"Types: deb\nURIs: {self.uri}\nSuites: {suite}\nComponents: main\n{signed}"


def machine_sources(etc: Path = _ETC) -> list[Source]:
    """Read the machine's apt sources, in both of apt's formats."""
    found: list[Source] = []
    for path in sorted(etc.glob("sources.list.d/*.sources")):
        for stanza in re.split(r"\n\s*\n", path.read_text()):
            fields = dict(_fields(stanza))
            if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes").lower() != "no":
                suites = tuple(fields.get("suites", "").split())
                signed_by = fields.get("signed-by", "")
                found += [Source(uri, suites, signed_by) for uri in fields.get("uris", "").split()]
    for path in (etc / "sources.list", *sorted(etc.glob("sources.list.d/*.list"))):
        for match in _ONE_LINE.finditer(path.read_text() if path.exists() else ""):
            options = dict(word.split("=", 1) for word in (match["options"] or "").split() if "=" in word)
            found.append(Source(match["uri"], (match["suite"],), options.get("signed-by", "")))
    return found


def _fields(stanza: str) -> Iterator[tuple[str, str]]:
    """Read the fields of one stanza; a line that starts with a space goes on with the field above it."""
    name, value = "", ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            value += f"\n{line}"
            continue
        if name:
            yield name, value.strip()
        name, _, value = line.partition(":")
        name = name.lower()
    if name:
        yield name, value.strip()


def stanzas(sources: Iterable[Source], suites: Sequence[str]) -> str:
    """Write apt sources for these suites of the distribution.

    Security updates have a place of their own; all the rest of a release is where the release is.

    :raises MissingRequirementError: if the machine has no such place
    """
    places: dict[bool, Source] = {}
    for source in sources:
        for suite in source.suites:
            security = suite.endswith("-security")
            plain = suite.removesuffix("-security").removesuffix("-updates").removesuffix("-backports")
            if _RELEASE.fullmatch(plain) and "debian" in source.uri:
                places.setdefault(security, source)
    written = []
    for suite in suites:
        place = places.get(suite.endswith("-security"))
        if place is None:
            raise MissingRequirementError(f"Debian apt sources on this machine, to get {suite} from")
        written.append(place.stanza(suite))
    return "\n".join(written)


class Apt:
    """apt on a folder of its own, with these suites of the distribution."""

    def __init__(self, folder: Path, suites: Sequence[str]) -> None:
        self._folder = folder
        for name in ("lists/partial", "cache/archives/partial", "sources"):
            (folder / name).mkdir(parents=True)
        (folder / "sources/suites.sources").write_text(stanzas(machine_sources(), suites))
        (folder / "preferences").write_text(_NEWEST_WINS)
        self._run("apt-get", "update", "-q")

    def newest(self, package: str, pattern: str) -> str:
        """Name the package that a metapackage stands for."""
        names = re.findall(r"Depends: (\S+)", self._run("apt-cache", "depends", package))
        for name in names:
            if re.fullmatch(pattern, name):
                return str(name)
        raise MissingRequirementError(f"a package {pattern}, and {package} depends on {' '.join(names)}")

    def unpack(self, packages: Sequence[str], target: Path) -> None:
        """Download packages and lay their files out below a folder."""
        downloads = self._folder / "downloads"
        downloads.mkdir()
        self._run("apt-get", "download", "-q", *packages, cwd=downloads)
        for archive in sorted(downloads.iterdir()):
            subprocess.run(["dpkg", "-x", str(archive), str(target)], check=True)
            archive.unlink()
        downloads.rmdir()

    def dependencies(self, package: str, pattern: str) -> list[str]:
        """Name those of a package's dependencies that match, without what they depend on."""
        text = self._run("apt-cache", "depends", package)
        return [name for name in re.findall(r"Depends: (\S+)", text) if re.fullmatch(pattern, name)]

    def _run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        options = {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": f"{self._folder}/sources",
            "Dir::Etc::Preferences": f"{self._folder}/preferences",
            "Dir::Etc::PreferencesParts": "/dev/null",
            "Dir::State::Lists": f"{self._folder}/lists",
            "Dir::Cache": f"{self._folder}/cache",
            "APT::Sandbox::User": "root",  # the folder is ours alone, and no other user can read it
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        ran = subprocess.run(
            ["nice", "-n", "10", program, *words, *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            last = "; ".join(ran.stderr.strip().splitlines()[-2:])
            raise MissingRequirementError(f"{program} {arguments[0]} to work: {last}")
        return ran.stdout
