"""The versions that this suite runs, in one place: a new Kubernetes release is one more line here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """One Kubernetes release whose kubelet is built and run."""

    version: str

    @property
    def minor(self) -> int:
        """The number that decides what a kubelet does (36 for v1.36.3)."""
        return int(self.version.split(".")[1])

    def __str__(self) -> str:
        return self.version


RELEASES = (Release("v1.34.4"), Release("v1.36.3"), Release("v1.37.2"))
CONTAINERD = "v2.2.9"
