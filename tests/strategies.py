"""Hypothesis strategies for what goes over the wire, and Google's protobuf as a second opinion.

Google's classes are made from the same .proto files by Google's compiler, at the first
use; neither betterproto2 nor gpuplug.kubelet.wire has a part in that.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from gpuplug.kubelet.podresources.message_pool import default_message_pool as pod_resources
from gpuplug.kubelet.v1beta1.message_pool import default_message_pool as device_plugin
from gpuplug.model import Gpu, Offer, Resource, ResourceName, Verdict

if TYPE_CHECKING:
    import betterproto2
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message as GoogleMessage

PROTOS: Final = Path(__file__).resolve().parent.parent / "protos"
SOURCES: Final = ("deviceplugin/v1beta1.proto", "podresources/v1.proto")

MESSAGES: Final[dict[str, type[betterproto2.Message]]] = {
    url.removeprefix("type.googleapis.com/").removeprefix("v1beta1."): message
    for pool in (device_plugin, pod_resources)
    for url, message in sorted(pool.url_to_type.items())
}
"""Our class of every message, by the name in its .proto file; with ``v1.`` for pod resources."""


@cache
def google_pool() -> descriptor_pool.DescriptorPool:
    """Compile the .proto files with Google's protoc and give the types that it declares."""
    with tempfile.TemporaryDirectory(prefix="gpuplug-descriptors-") as folder:
        out = Path(folder) / "descriptors"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                f"--proto_path={PROTOS}",
                f"--descriptor_set_out={out}",
                *SOURCES,
            ],
            check=True,
        )
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool


@cache
def google_type(name: str) -> type[GoogleMessage]:
    """Give Google's class for a message of the API."""
    return message_factory.GetMessageClass(_descriptor(name))


def _descriptor(name: str) -> Descriptor:
    return google_pool().FindMessageTypeByName(name if "." in name else f"v1beta1.{name}")


def _name(descriptor: Descriptor) -> str:
    return str(descriptor.full_name).removeprefix("v1beta1.")


def our_message(name: str, content: dict[str, Any]) -> betterproto2.Message:
    """Build our message from plain values, as ``google_type(name)(**content)`` builds Google's."""
    fields = _descriptor(name).fields_by_name
    return MESSAGES[name](**{key: _our_value(fields[key], value) for key, value in content.items()})


def _our_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is None or field.message_type.GetOptions().map_entry:
        return value
    if field.is_repeated:
        return [our_message(_name(field.message_type), item) for item in value]
    return our_message(_name(field.message_type), value)


def contents(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Draw values for the fields of a message, any of which may be left out."""
    return _contents(_descriptor(name))


def _contents(descriptor: Descriptor) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={field.name: _values(field) for field in descriptor.fields})


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return st.dictionaries(_values(entry["key"]), _values(entry["value"]), max_size=4)
    single: st.SearchStrategy[Any]
    if field.message_type is not None:
        single = _contents(field.message_type)
    else:
        single = {
            FieldDescriptor.TYPE_BOOL: st.booleans(),
            FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
            FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
            FieldDescriptor.TYPE_STRING: st.text() | st.text(min_size=130, max_size=150),
        }[field.type]
    return st.lists(single, max_size=4) if field.is_repeated else single


addresses: st.SearchStrategy[str] = st.one_of(
    st.from_regex(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", fullmatch=True),
    st.sampled_from(["fd000000.gpu", "vgem", "fe9b0000.dc-0", "ä.gpu"]),
    st.text(min_size=1, max_size=63),
)
"""What sysfs calls a bus device; the last kind is ruder than any kernel."""


@st.composite
def offers(draw: st.DrawFn) -> Offer:
    """Draw a GPU as it is advertised: what the wire shows of it varies, the rest does not."""
    gpu = Gpu(
        address=draw(addresses),
        bus="pci",
        kernel_driver="i915",
        nodes=(),
        numa_node=draw(st.none() | st.integers(0, 3) | st.integers(0, 2**31 - 1)),
    )
    # Around the numbers at which ids grow by a digit.
    shares = draw(st.integers(1, 3) | st.sampled_from([9, 10, 11, 12, 99, 100, 101, 102, 1001, 1002]))
    return Offer(gpu, "i915", shares, (), verdict=Verdict(healthy=draw(st.booleans())))


def resources() -> st.SearchStrategy[Resource]:
    """Draw a Resource with up to four GPUs."""
    name = ResourceName("gpu.intel.com/i915")
    return st.lists(offers(), max_size=4).map(lambda drawn: Resource(name, tuple(drawn)))
