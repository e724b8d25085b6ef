"""Connection to one daemon."""

import ctypes

from oasiskv import native
from oasiskv.geometry import Geometry, Identity
from oasiskv.memory import address_of
from oasiskv.native import Handle, call, text
from oasiskv.producer import Producer
from oasiskv.reader import Reader


def milliseconds(seconds: float) -> int:
    """Seconds to whole milliseconds; more than 0 never becomes 0, which would mean the default."""
    if seconds < 0:
        raise ValueError(f"a time of {seconds} s")
    return max(1, round(seconds * 1000)) if seconds else 0


class Buffer(Handle):
    """Registered memory, made by Client.register_buffer; it keeps the memory alive. Close it when no more is fetched
    there. Thread contract: one thread at a time."""

    _kind = "buffer"

    def __init__(self, pointer, memory):
        super().__init__(pointer)
        self._memory = memory

    @property
    def direct(self) -> bool:
        """Whether fetches land in it without a copy of the fabric's own, over the connection of this moment."""
        out = ctypes.c_uint32()
        call("buffer_direct", self.raw, ctypes.byref(out))
        return bool(out.value)

    def close(self) -> None:
        super().close()
        self._memory = None


class Client(Handle):
    """Thread contract: safe for concurrent use. Times are seconds; 0 means the default.

    `fabric` is "shm", "verbs" or "ucx", or "auto": shm on the daemon's own host, else verbs where both sides have RDMA,
    else ucx. A named one that cannot be had raises Unsupported. The verbs_ arguments name this side's RDMA device, port
    and GID; the defaults have them chosen.
    """

    _kind = "client"

    def __init__(self, address: str = "127.0.0.1:7400", fabric: str = "auto", *, rpc_timeout: float = 0,
                 read_timeout: float = 0, lease: float = 0, verify_checksums: bool = False,
                 verbs_device: str = "", verbs_port: int = 0, verbs_gid_index: int = -1,
                 verbs_peer_timeout: float = 0):
        out = ctypes.c_void_p()
        options = native.CClientOptions(
            address=text(address), fabric=text(fabric), rpc_timeout_ms=milliseconds(rpc_timeout),
            read_timeout_ms=milliseconds(read_timeout), lease_ms=milliseconds(lease),
            verify_checksums=int(verify_checksums), verbs_device=text(verbs_device) or None, verbs_port=verbs_port,
            verbs_gid_given=int(verbs_gid_index >= 0), verbs_gid_index=max(0, verbs_gid_index),
            verbs_peer_timeout_ms=milliseconds(verbs_peer_timeout),
        )
        call("client_connect", ctypes.byref(options), ctypes.byref(out))
        super().__init__(out)

    def open(self, name: str, identity: Identity, geometry: Geometry, blocks: int = 0, *, checksums: bool = False,
             lease: float = 0) -> Producer:
        """A new sequence with `blocks` frames reserved. Raises AlreadyExists, Capacity, Draining, InvalidArgument."""
        out = ctypes.c_void_p()
        spec = native.CProducerSpec(
            name=text(name), identity=ctypes.pointer(identity.to_c()), geometry=ctypes.pointer(geometry.to_c()),
            blocks=blocks, checksums=int(checksums), lease_ms=milliseconds(lease),
        )
        call("producer_open", self.raw, ctypes.byref(spec), ctypes.byref(out))
        return Producer(out, geometry)

    def attach(self, name: str, identity: Identity, geometry: Geometry, *, first_head: int = 0, head_count: int = 0,
               lease: float = 0, wait_for_seal: float = 0) -> Reader:
        """A reader's grant to (a head range of) a sequence. `geometry` is the shard's as the caller expects it.

        Raises NotFound, NotSealed, GeometryMismatch, IdentityMismatch, OutOfRange, Capacity.
        """
        out = ctypes.c_void_p()
        spec = native.CReaderSpec(
            name=text(name), identity=ctypes.pointer(identity.to_c()), geometry=ctypes.pointer(geometry.to_c()),
            first_head=first_head, head_count=head_count, lease_ms=milliseconds(lease),
            wait_for_seal_ms=milliseconds(wait_for_seal),
        )
        call("reader_attach", self.raw, ctypes.byref(spec), ctypes.byref(out))
        return Reader(out, geometry)

    def release_sequence(self, name: str, identity: Identity) -> bool:
        """The request has ended. False when there was no such sequence (any more)."""
        released = ctypes.c_uint32()
        call("client_release_sequence", self.raw, text(name), ctypes.byref(identity.to_c()), ctypes.byref(released))
        return released.value > 0

    def abort(self, name: str, identity: Identity, reason: str = "") -> int:
        """Revokes every grant of the sequence at once; gives their number."""
        revoked = ctypes.c_uint32()
        call("client_abort", self.raw, text(name), ctypes.byref(identity.to_c()), text(reason), ctypes.byref(revoked))
        return revoked.value

    def register_buffer(self, memory, nbytes: int = 0) -> Buffer:
        """Fetches into `memory` then land there without a copy of the fabric's own (verbs; elsewhere it does nothing).

        `memory` is a writable buffer (nbytes 0: all of it) or an address with its nbytes, which must stay mapped until
        the Buffer is closed. It is pinned meanwhile. Raises Capacity when no more memory may be locked.
        """
        if not isinstance(memory, int):
            nbytes = nbytes or memoryview(memory).nbytes
        out = ctypes.c_void_p()
        call("buffer_register", self.raw, address_of(memory, nbytes, True, "memory"), nbytes, ctypes.byref(out))
        return Buffer(out, memory)

    def health(self) -> None:
        """Returns when the daemon answers as far as is known; raises PeerLost otherwise."""
        call("client_health", self.raw)

    def describe(self) -> str:
        """One line: daemon, version, fabric and why it was chosen."""
        buffer = ctypes.create_string_buffer(1024)
        call("client_describe", self.raw, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def stats(self) -> dict:
        """Counters since the client was made (names: oasiskv_client_stats)."""
        out = native.CClientStats()
        call("client_stats_get", self.raw, ctypes.byref(out))
        return out.as_dict()
