"""Connection to one daemon."""

import ctypes

from oasiskv import native
from oasiskv.geometry import Geometry, Identity
from oasiskv.memory import address_of
from oasiskv.native import Handle, call, get, milliseconds, text
from oasiskv.producer import Producer
from oasiskv.reader import Reader


class Buffer(Handle):
    """Thread contract: one thread at a time.

    Registered memory, made by Client.register_buffer. It keeps the memory alive; close it after the last fetch.
    """

    _kind = "buffer"

    def __init__(self, pointer, memory):
        super().__init__(pointer)
        self._memory = memory

    @property
    def direct(self) -> bool:
        """Whether, over the present connection, fetches land in it without a copy."""
        return bool(get(ctypes.c_uint32, "buffer_direct", self).value)

    def close(self) -> None:
        super().close()
        self._memory = None


class Client(Handle):
    """Thread contract: safe for concurrent use.

    `address` is host:port or [v6]:port of the daemon. `fabric` is "shm", "verbs" or "ucx", or "auto": shm on the daemon's
    host, else verbs if both sides have RDMA, else ucx. Times are seconds; 0 means the default: rpc_timeout 5, read_timeout
    10, lease the daemon's, verbs_peer_timeout 0.5. The other verbs_ arguments name this side's RDMA device, port and GID
    table entry; by default they are chosen. Raises PeerLost (no daemon answers), Unsupported (the daemon does not serve
    `fabric`, or there is no device for it) and InvalidArgument.
    """

    _kind = "client"

    def __init__(self, address: str = "127.0.0.1:7400", fabric: str = "auto", *, rpc_timeout: float = 0,
                 read_timeout: float = 0, lease: float = 0, verify_checksums: bool = False,
                 verbs_device: str = "", verbs_port: int = 0, verbs_gid_index: int = -1,
                 verbs_peer_timeout: float = 0):
        options = native.CClientOptions(
            address=text(address, "address"), fabric=text(fabric, "fabric"),
            rpc_timeout_ms=milliseconds(rpc_timeout, "rpc_timeout"),
            read_timeout_ms=milliseconds(read_timeout, "read_timeout"), lease_ms=milliseconds(lease, "lease"),
            verify_checksums=int(verify_checksums), verbs_device=text(verbs_device, "verbs_device") or None,
            verbs_port=verbs_port,
            verbs_gid_given=int(verbs_gid_index >= 0), verbs_gid_index=max(0, verbs_gid_index),
            verbs_peer_timeout_ms=milliseconds(verbs_peer_timeout, "verbs_peer_timeout"),
        )
        super().__init__(get(ctypes.c_void_p, "client_connect", ctypes.byref(options)))

    def open(self, name: str, identity: Identity, geometry: Geometry, blocks: int = 0, *, checksums: bool = False,
             lease: float = 0) -> Producer:
        """Makes a new sequence, with frames for `blocks` blocks. `lease` in seconds, 0: the client's.

        Raises AlreadyExists, Capacity, Draining, InvalidArgument, PeerLost.
        """
        spec = native.CProducerSpec(
            name=text(name, "name"), identity=ctypes.pointer(identity.to_c()), geometry=ctypes.pointer(geometry.to_c()),
            blocks=blocks, checksums=int(checksums), lease_ms=milliseconds(lease, "lease"),
        )
        return Producer(get(ctypes.c_void_p, "producer_open", self, ctypes.byref(spec)), geometry)

    def attach(self, name: str, identity: Identity, geometry: Geometry, *, first_head: int = 0, head_count: int = 0,
               lease: float = 0, wait_for_seal: float = 0) -> Reader:
        """Attaches to a sequence, or to `head_count` of its heads from `first_head` on (0: all).

        `geometry` is what the shard must have. `wait_for_seal`: seconds to wait until it is sealed; 0: attach at once,
        also while it is written. Raises NotFound, NotSealed, GeometryMismatch, IdentityMismatch, OutOfRange, Capacity,
        WrongState, PeerLost.
        """
        spec = native.CReaderSpec(
            name=text(name, "name"), identity=ctypes.pointer(identity.to_c()), geometry=ctypes.pointer(geometry.to_c()),
            first_head=first_head, head_count=head_count, lease_ms=milliseconds(lease, "lease"),
            wait_for_seal_ms=milliseconds(wait_for_seal, "wait_for_seal"),
        )
        return Reader(get(ctypes.c_void_p, "reader_attach", self, ctypes.byref(spec)), geometry)

    def release_sequence(self, name: str, identity: Identity) -> bool:
        """Ends the sequence: no new attach; frames are freed when the last reader is gone. False: there was none."""
        return get(ctypes.c_uint32, "client_release_sequence", self, text(name, "name"),
                   ctypes.byref(identity.to_c())).value > 0

    def abort(self, name: str, identity: Identity, reason: str = "") -> int:
        """Throws the sequence away: revokes all its grants at once, and returns their number."""
        return get(ctypes.c_uint32, "client_abort", self, text(name, "name"), ctypes.byref(identity.to_c()),
                   text(reason, "reason")).value

    def register_buffer(self, memory, nbytes: int = 0) -> Buffer:
        """With verbs, fetches into `memory` then need no copy; with the other fabrics it does nothing.

        `memory` is a writable buffer (nbytes 0: all of it), or an address and its nbytes, which must stay mapped until
        the Buffer is closed. It is pinned until then. Raises Capacity when no more memory may be locked.
        """
        if not isinstance(memory, int):
            nbytes = nbytes or memoryview(memory).nbytes
        out = get(ctypes.c_void_p, "buffer_register", self, address_of(memory, nbytes, True, "memory"), nbytes)
        return Buffer(out, memory)

    def health(self) -> None:
        """Raises PeerLost when the daemon is known to be lost."""
        call("client_health", self)

    def describe(self) -> str:
        """One line: daemon, version, fabric and why it was chosen."""
        buffer = ctypes.create_string_buffer(1024)
        call("client_describe", self, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    def stats(self) -> dict:
        """Counters since the client was made; oasiskv_client_stats in oasiskv.h has their names."""
        return get(native.CClientStats, "client_stats_get", self).as_dict()
