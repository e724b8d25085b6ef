"""Include rules of the tree. Usage: layering.py ROOT

Folders are layers (proto <- common <- server, client <- tools <- tests), and each foreign interface has one home. Reading
an include line is enough to check both.
"""

import pathlib
import re
import sys

import tree

INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')

# First folder of a file -> first folders of the tree that it may include.
LAYERS = {
    "common": {"common"},
    "server": {"common", "server"},
    "client": {"common", "client"},
    "tools": {"common", "client", "tools"},
    "tests": {"common", "server", "client", "tools", "tests"},
}
FOLDERS = set(LAYERS)

# (what, pattern of included path, where it may be included). The test of the ucx fabric plays a peer that keeps no rule,
# for which it needs UCX itself; last_wqe_event stands between UCX and a device that leaves an event out.
HOMES = [
    ("UCX", re.compile(r"^uc[pstm]/"), ("common/fabric/", "tests/unit/fabric/ucx_", "tests/fabric/ucx_")),
    ("verbs", re.compile(r"^(infiniband|rdma)/"), ("common/fabric/", "tests/fabric/last_wqe_event")),
    ("CUDA", re.compile(r"^(cuda\w*(/.*)?\.h|cuda/.*|cuda_runtime\.h|driver_types\.h)$"),
     ("common/cuda/", "client/working_set/cuda/", "tests/gpu/", "tools/bench/gpu/", "tools/bench/rig/", "tools/bench/step/")),
]

# gRPC and protobuf headers cost seconds in each file that sees them: sources include them, headers forward-declare.
HEAVY = re.compile(r"(^grpc(pp)?/|^google/protobuf/|\.pb\.h$)")
# Templates over gRPC's call types; only sources of the same folder include these headers.
HEAVY_HOMES = ("server/service/", "tests/integration/")


def check(root):
    root = pathlib.Path(root)
    findings = []
    for path in tree.files(root, {".h", ".cc", ".c", ".cu", ".cuh"}):
        folder = path.parts[0]
        name = path.as_posix()
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            included = match.group(2)
            where = f"{name}:{number}: "
            first = included.split("/")[0]
            if included.startswith("../") or included.startswith("./"):
                findings.append(where + f"'{included}' is relative; name it from the top of the tree")
            if folder in LAYERS and first in FOLDERS and first not in LAYERS[folder]:
                findings.append(where + f"{folder}/ may not include {first}/ ('{included}')")
            for what, pattern, homes in HOMES:
                if pattern.match(included) and not name.startswith(homes):
                    findings.append(where + f"{what} header '{included}' outside {', '.join(homes)}")
            if path.suffix == ".h" and HEAVY.search(included) and not name.startswith(HEAVY_HOMES):
                findings.append(where + f"'{included}' in a header; forward-declare it and include it in the .cc file")
    return findings


if __name__ == "__main__":
    sys.exit(tree.report(check(sys.argv[1]), "layering"))
