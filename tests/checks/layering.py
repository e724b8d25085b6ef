"""Include rules of the tree. Usage: layering.py ROOT

Folders are layers (proto <- common <- server, client <- tools <- tests), the folders inside them too, and each foreign
interface has one home. Reading an include line is enough to check all of it.
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

# The folders inside them, lowest first: a file includes what its own folder has and what stands left of a "<" before it.
# Those between commas are neighbours and do not include each other. "." is the first folder itself; include is the folder
# of public headers, below everything else.
ORDER = {
    "common": "include < . < wire, fabric, cuda < fabric/shm, fabric/ucx, fabric/verbs < fabric/verbs/client",
    "server": "pool < sequence < lease < core < options, service < daemon",
    "client": "include < selection < connection < producer, reader < source < working_set"
              " < working_set/cpu, working_set/cuda/kernels < working_set/cuda/host < working_set/cuda < c_api",
    "tools": "oasisctl < oasisctl/doctor < bench/rig < bench < bench/gpu < bench/step/kernels < bench/step/model < bench/step",
}
# The start of a file's name -> what it may include above itself: the lists of fabrics and of operations name each of them.
UPWARD = {
    "common/fabric/registry.": "common/fabric/",
    "tools/bench/main.": "tools/bench/",
}
PUBLIC = ("common/include/", "client/include/")

# (what, pattern of included path, where it may be included). The test of the ucx fabric plays a peer that keeps no rule,
# for which it needs UCX itself.
HOMES = [
    ("UCX", re.compile(r"^uc[pstm]/"), ("common/fabric/", "tests/unit/fabric/ucx_")),
    ("verbs", re.compile(r"^(infiniband|rdma)/"), ("common/fabric/",)),
    ("CUDA", re.compile(r"^(cuda\w*(/.*)?\.h|cuda/.*|cuda_runtime\.h|driver_types\.h)$"),
     ("common/cuda/", "client/working_set/cuda/", "tests/gpu/", "tools/bench/gpu/", "tools/bench/rig/", "tools/bench/step/")),
]

# gRPC and protobuf headers cost seconds in each file that sees them: sources include them, headers forward-declare.
HEAVY = re.compile(r"(^grpc(pp)?/|^google/protobuf/|\.pb\.h$)")
# Templates over gRPC's call types; only sources of the same folder include these headers.
HEAVY_HOMES = ("server/service/", "tests/integration/")


def ranks():
    """Folder -> its place in the order of its first folder."""
    places = {}
    for first, order in ORDER.items():
        for place, row in enumerate(order.split("<")):
            for folder in row.split(","):
                folder = folder.strip()
                places[first if folder == "." else f"{first}/{folder}"] = place
    return places


RANKS = ranks()


def layer_of(name):
    """The folder of ORDER that a file belongs to, or None where it has no place there."""
    folder = name.rpartition("/")[0]
    for public in PUBLIC:
        if name.startswith(public):
            return public.rstrip("/")
    return folder if folder in RANKS else None


def misplaced(name, included):
    """Why the file may not include that file of the tree, or None."""
    layer, below = layer_of(name), layer_of(included)
    if layer is None or below is None or layer == below or layer.split("/")[0] != below.split("/")[0]:
        return None  # a folder that is missing in ORDER is a finding of its own; first folders are LAYERS' matter
    if RANKS[below] < RANKS[layer]:
        return None
    if any(name.startswith(file) and included.startswith(above) for file, above in UPWARD.items()):
        return None
    order = ORDER[layer.split("/")[0]]
    return f"{layer}/ stands below {below}/, or beside it ('{included}'): {order}"


def check(root):
    root = pathlib.Path(root)
    findings = []
    unknown = set()
    for path in tree.files(root, {".h", ".cc", ".c", ".cu", ".cuh"}):
        folder = path.parts[0]
        name = path.as_posix()
        if folder in ORDER and layer_of(name) is None and path.parent not in unknown:
            unknown.add(path.parent)
            findings.append(f"{path.parent}/ has no place in ORDER of layering.py: name it there, above what it includes")
        for number, line in enumerate((root / path).read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            included = match.group(2)
            where = f"{name}:{number}: "
            for public in PUBLIC:
                if (root / public / included).is_file():
                    included = public + included
            first = included.split("/")[0]
            if included.startswith("../") or included.startswith("./"):
                findings.append(where + f"'{included}' is relative; name it from the top of the tree")
            if folder in LAYERS and first in FOLDERS and first not in LAYERS[folder]:
                findings.append(where + f"{folder}/ may not include {first}/ ('{included}')")
            reason = misplaced(name, included)
            if reason:
                findings.append(where + reason)
            for what, pattern, homes in HOMES:
                if pattern.match(included) and not name.startswith(homes):
                    findings.append(where + f"{what} header '{included}' outside {', '.join(homes)}")
            if path.suffix == ".h" and HEAVY.search(included) and not name.startswith(HEAVY_HOMES):
                findings.append(where + f"'{included}' in a header; forward-declare it and include it in the .cc file")
    return findings


if __name__ == "__main__":
    sys.exit(tree.report(check(sys.argv[1]), "layering"))
