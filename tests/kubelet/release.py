"""Move the device manager to another Kubernetes release: `python tests/kubelet/release.py v1.36.3`.

k8s.io/kubernetes is not meant to be imported: its go.mod asks for v0.0.0 of every library that
lives in the same source tree, and only its own `replace` lines make sense of that. So whoever
imports it has to say which published version stands for each. That is worked out here from the
release's own go.mod, so nobody has to keep the list of libraries up to date.
"""

import json
import subprocess
import sys
from pathlib import Path

MODULE = "gpuplug.test/devicemanager"
KUBERNETES = "k8s.io/kubernetes"
SOURCES = Path(__file__).parent / "devicemanager"


def go(*arguments: str) -> str:
    """Run the Go tool in the folder of the sources. Its complaints go to the terminal."""
    run = subprocess.run(["go", *arguments], cwd=SOURCES, check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout


def go_mod(version: str, kubernetes: dict[str, object]) -> str:
    """Return the go.mod for a release, before `go mod tidy` adds what is indirect."""
    requirements = kubernetes["Require"]
    assert isinstance(requirements, list)
    libraries = sorted(need["Path"] for need in requirements if need["Version"] == "v0.0.0")
    # Kubernetes v1.36.3 publishes its libraries as v0.36.3.
    published = "v0." + version.removeprefix("v1.")
    lines = [
        f"module {MODULE}",
        "",
        f"go {kubernetes['Go']}",
        "",
        f"require {KUBERNETES} {version}",
        "",
        "replace (",
        *(f"\t{library} => {library} {published}" for library in libraries),
        ")",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write go.mod and go.sum for the release that is named on the command line."""
    if len(sys.argv) != 2 or not sys.argv[1].startswith("v1."):
        sys.exit("usage: release.py v1.MINOR.PATCH")
    version = sys.argv[1]
    download = json.loads(go("mod", "download", "-json", f"{KUBERNETES}@{version}"))
    kubernetes = json.loads(go("mod", "edit", "-json", download["GoMod"]))
    (SOURCES / "go.mod").write_text(go_mod(version, kubernetes))
    (SOURCES / "go.sum").unlink(missing_ok=True)
    go("mod", "tidy")
    sys.stderr.write(f"devicemanager is at {version}: run the suite, mend release.go if it does not build\n")


if __name__ == "__main__":
    main()
