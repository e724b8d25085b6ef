"""Client of the oasiskv disaggregated KV memory service: a thin layer over its C ABI.

    client = oasiskv.Client("127.0.0.1:7400")
    producer = client.open("request-1/0", identity, geometry, blocks=64)      # prefill side
    reader = client.attach("request-1/0", identity, geometry)                 # decode side

Every call that can wait releases the GIL. Failed calls raise the subclass of `OasisError` for their error code
(oasiskv.Stale, oasiskv.LeaseExpired, ...). Arrays are numpy arrays; memory arguments may also be anything with
the buffer interface, or an address (int).
"""

from oasiskv.client import Buffer, Client
from oasiskv.errors import *  # noqa: F401,F403 - one class per error code
from oasiskv.errors import OasisError
from oasiskv.device import DeviceArray
from oasiskv.geometry import Combine, ElementType, Geometry, Identity, Packing
from oasiskv.gpu_working_set import GpuPages, GpuWorkingSet, Miss, QueryType, Snapshot
from oasiskv.native import crc32c, library_path, set_log_level, version
from oasiskv.producer import Producer
from oasiskv.reader import Fetch, Reader
from oasiskv.working_set import HostCache, Late, Loss, Mode, ResidentView, Source, WorkingSet

__version__ = "0.2.0"
