"""The links of /dev/dri/by-path: names of GPU nodes that do not change with the order of appearance.

udev makes them, a moment after the nodes (``pci-0000:03:00.0-render -> ../renderD128``); where
there is no udev, there are none. They are looked at when a container is given a GPU, since a
mount of a link that is gone would keep the container from starting.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from gpuplug.model import Mount

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpuplug.host.attributes import Roots

FOLDER: Final = "/dev/dri/by-path"


def mounts(roots: Roots, mode: str, nodes: Collection[str]) -> tuple[Mount, ...]:
    """Say what a container gets of the folder.

    A runtime mounts the node that a link leads to, under the link's name; of a mounted folder
    the links stay links, those of other GPUs too, though these lead nowhere in the container.

    :param mode: ``single`` for the links that lead to ``nodes``, ``all`` for the folder, ``none``.
    :param nodes: names of nodes that the container gets: ``renderD128``.
    """
    if mode == "none":
        return ()
    folder, told = f"{roots.dri}/by-path", roots.on_node(FOLDER)
    try:
        links = sorted(os.listdir(folder))
    except OSError:
        return ()
    if mode == "all":
        return (Mount(FOLDER, told),)
    return tuple(Mount(f"{FOLDER}/{link}", f"{told}/{link}") for link in links if _leads(folder, link, nodes))


def _leads(folder: str, link: str, nodes: Collection[str]) -> bool:
    try:
        target = os.readlink(f"{folder}/{link}")
    except OSError:  # no link, or gone meanwhile
        return False
    return os.path.dirname(target) == ".." and os.path.basename(target) in nodes and _is_text(link)


def _is_text(name: str) -> bool:
    return name.encode(errors="ignore").decode() == name
