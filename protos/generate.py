# ruff: noqa: INP001 (a script, in a folder that is no package)
"""Generate the packages of message classes in gpuplug/kubelet from the .proto files here.

::

    uv run python protos/generate.py            write the files
    uv run python protos/generate.py --check    write nothing; exit 1 if they differ from the files there

The result depends on the .proto files and on the versions of betterproto2-compiler
and ruff (which it calls as formatter), and on nothing else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

PROTOS: Final = Path(__file__).resolve().parent
KUBELET: Final = PROTOS.parent / "gpuplug" / "kubelet"
TARGETS: Final = {
    "deviceplugin/v1beta1.proto": KUBELET / "v1beta1",
    "podresources/v1.proto": KUBELET / "podresources",
}
"""Where the package goes that is made of a .proto file; the file bears the name of its API's version."""

# asyncio stubs and services only: the synchronous ones would import grpcio.
OPTIONS: Final = "client_generation=async,server_generation=async"

# The compiler expects one tree for all packages and puts the message pool at its
# root. We keep one package, so its pool stands in the package itself.
POOL_AT_THE_ROOT: Final = "from ..message_pool import"
POOL_IN_THE_PACKAGE: Final = "from .message_pool import"

# The compiler has ruff format its output, and ruff obeys the nearest configuration
# file: this one stands in the temporary folder, so that no other one is found.
RUFF_CONFIGURATION: Final = 'line-length = 110\ntarget-version = "py311"\n'


def generate(source: str) -> dict[str, str]:
    """Run the compilers in a temporary folder and give what they wrote, by file name.

    Raises ``subprocess.CalledProcessError`` if the .proto file does not compile.
    """
    scripts = Path(sysconfig.get_path("scripts"))
    with tempfile.TemporaryDirectory(prefix="gpuplug-protos-") as name:
        folder = Path(name)
        (folder / "ruff.toml").write_text(RUFF_CONFIGURATION)
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--plugin=protoc-gen-python_betterproto2={scripts / 'protoc-gen-python_betterproto2'}",
            f"--proto_path={PROTOS}",
            f"--python_betterproto2_out={folder}",
            f"--python_betterproto2_opt={OPTIONS}",
            source,
        ]
        # The compiler finds ruff by PATH: let it be the one of this environment.
        path = os.pathsep.join([str(scripts), os.environ.get("PATH", os.defpath)])
        subprocess.run(  # noqa: S603 (every word of the command is ours)
            command, cwd=folder, env={**os.environ, "PATH": path}, check=True, capture_output=True, text=True
        )
        messages = (folder / Path(source).stem / "__init__.py").read_text()
        pool = (folder / "message_pool.py").read_text()
    if messages.count(POOL_AT_THE_ROOT) != 1:
        msg = f"expected {POOL_AT_THE_ROOT!r} once: does this compiler lay out its files in another way?"
        raise RuntimeError(msg)
    messages = messages.replace(POOL_AT_THE_ROOT, POOL_IN_THE_PACKAGE)
    return {"__init__.py": messages, "message_pool.py": pool}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code is 1 if a check found a difference or a compiler failed."""
    parser = argparse.ArgumentParser(description="Generate the packages of message classes from protos/.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    options = parser.parse_args(arguments)

    stale = []
    for source, target in TARGETS.items():
        try:
            files = generate(source)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(error.stderr)
            return 1
        if options.check:
            there = {path.name: path.read_text() for path in sorted(target.glob("*.py"))}
            names = sorted(name for name in files.keys() | there.keys() if files.get(name) != there.get(name))
            stale += [f"{target / name} is not what {source} gives" for name in names]
            continue
        target.mkdir(exist_ok=True)
        for name, text in files.items():
            (target / name).write_text(text)
    for line in stale:
        sys.stderr.write(f"{line}: run protos/generate.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
