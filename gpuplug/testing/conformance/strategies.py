"""GPUs made by hypothesis: those of a driver in every state, and any others."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuplug.model import CompanionNode, Gpu
from gpuplug.testing.gpus import make_node

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

EXAMPLES: Final = 60
"""How many GPUs are made for a driver."""
_PROFILE: Final = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
OTHER_DRIVERS: Final = ("", "vfio-pci", "simpledrm", "somebody_elses_gpu")
"""Kernel drivers that no driver package should claim by accident."""

_WILDCARDS: Final = re.compile(r"\*|\?|\[[^\]]*\]")
_VALUES: Final = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-1",
        "0x1",
        "0000:03:00.0",
        "4294967296",
        "18446744073709551616",
        "N/A",
        "on",
        "a\nb",
        "ä",
        "1 2 3",
    ]
)
_MADE: Final[dict[str, list[Gpu]]] = {}
_ADDRESSES: Final = st.sampled_from(
    [
        "0000:03:00.0",
        "0000:00:02.0",
        "10000:e1:00.0",
        "ffffffff:e1:1f.7",
        "fd000000.gpu",
        "gpu",
        "virtio-gpu.0",
    ]
)


def names_of(globs: Collection[str]) -> list[str]:
    """Give names that sysfs may have for globs: one for each."""
    return sorted({_WILDCARDS.sub("0", glob) for glob in globs})


def values() -> st.SearchStrategy[str]:
    """Draw what sysfs may have as the text of an attribute."""
    return _VALUES | st.text(max_size=20)


@st.composite
def gpus(
    draw: st.DrawFn, own: Sequence[Gpu], attributes: Collection[str], companions: Collection[str]
) -> Gpu:
    """Draw a GPU: mostly one of the driver's own, in another state.

    :param own: GPUs that the driver claims.
    :param attributes: the attributes that it asks for, as globs.
    :param companions: the companion nodes that it asks for.
    """
    base = draw(st.sampled_from(own)) if own and draw(st.integers(0, 3)) > 0 else None
    if base is None:
        drivers = sorted({*OTHER_DRIVERS, *(gpu.kernel_driver for gpu in own)})
        pci = draw(st.booleans())
        number = st.none() | st.integers(0, 0xFFFF)
        base = Gpu(
            address=draw(_ADDRESSES),
            bus="pci" if pci else draw(st.sampled_from(["", "platform", "virtio", "faux"])),
            kernel_driver=draw(st.sampled_from(drivers)),
            nodes=(),
            vendor=draw(number) if pci else None,
            device=draw(number) if pci else None,
            pci_class=draw(st.sampled_from([0x030000, 0x030200, 0x038000, 0x120000])) if pci else None,
        )
    prefix = draw(st.sampled_from(["", "/host"]))
    card, render = draw(st.integers(0, 63)), draw(st.integers(128, 191))
    both = [f"card{card}", f"renderD{render}"]
    present = draw(st.sampled_from([both, both, both[:1], both[1:]]))
    known = sorted({*names_of(attributes), *base.attributes})
    kept = {
        name: draw(st.just(base.attributes.get(name, "")) | values()) for name in known if draw(st.booleans())
    }
    paths = [path for path in sorted(companions) if draw(st.booleans())]
    return replace(
        base,
        nodes=tuple(make_node(name, prefix) for name in present),
        missing=tuple(name for name in both if name not in present and draw(st.booleans())),
        numa_node=draw(st.none() | st.integers(0, 7)),
        attributes=MappingProxyType(kept),
        companions=MappingProxyType(
            {path: CompanionNode(path, f"{prefix}{path}", 500, minor) for minor, path in enumerate(paths)}
        ),
    )


def made(own: Sequence[Gpu], attributes: Collection[str], companions: Collection[str]) -> list[Gpu]:
    """Give GPUs that hypothesis makes, the simplest first: always the same ones for the same driver."""
    key = repr((own, sorted(attributes), sorted(companions)))
    if key in _MADE:
        return _MADE[key]
    found: dict[str, Gpu] = {}

    @_PROFILE
    @given(gpu=gpus(own, attributes, companions))
    def collect(gpu: Gpu) -> None:
        found[repr(gpu)] = gpu

    collect()
    _MADE[key] = [found[text] for text in sorted(found, key=lambda text: (len(text), text))]
    return _MADE[key]


@cache
def texts() -> tuple[str, ...]:
    """Give texts that hypothesis makes, for attributes: always the same ones."""
    found: set[str] = set()

    @_PROFILE
    @given(text=values())
    def collect(text: str) -> None:
        found.add(text)

    collect()
    return tuple(sorted(found, key=lambda text: (len(text), text)))
