"""Arguments of Intel's GPU plugin that have no effect here: taken, so that existing manifests work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpuplug.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEALTH: Final = "health comes from what sysfs says of the GPU, and needs no sidecar"
_LIMITS: Final = "a GPU's temperature does not count towards its health"
_LOG: Final = "the log goes to standard error, as --log-level and --log-format say"

IGNORED: Final[Mapping[str, str]] = {
    "--health-management": _HEALTH,
    "--xpumd-endpoint": _HEALTH,
    "--temp-limit": _LIMITS,
    "--gpu-temp-limit": _LIMITS,
    "--memory-temp-limit": _LIMITS,
    "--resource-manager": "parts of a GPU are shares without limits: see --shared-dev-num",
    "--wsl": "a GPU of the Windows below has no DRM device, and is left out with that reason",
    "--run-mode": "GPUs are served as DRM devices only",
    **dict.fromkeys(
        (
            "--add_dir_header",
            "--alsologtostderr",
            "--log_backtrace_at",
            "--log_dir",
            "--log_file",
            "--log_file_max_size",
            "--logtostderr",
            "--one_output",
            "--skip_headers",
            "--skip_log_headers",
            "--stderrthreshold",
            "--vmodule",
        ),
        _LOG,
    ),
}
"""Each option, and why it has no effect; those with an underscore are of its logging library, klog."""

VERBOSITY: Final = "verbosity"
"""The name under which the command line has the value of klog's ``-v``."""
_DEBUG: Final = 4
_TRACE: Final = 6


def with_log_level(given: Mapping[str, Any]) -> dict[str, Any]:
    """Take ``-v N`` for a log level, unless there is one: 4 and 5 are debug, 6 and more trace.

    :raises SettingError: if it is not a whole number.
    """
    options = dict(given)
    text = options.pop(VERBOSITY, "0")
    if not text.isascii() or not text.isdigit():
        raise SettingError(f"-v: {text!r} is not a whole number")
    level = "trace" if int(text) >= _TRACE else "debug" if int(text) >= _DEBUG else None
    if level is not None:
        options.setdefault("log_level", level)
    return options
