"""What liboasiskv.so exports is what the public headers declare. Usage: exported_symbols.py LIBOASISKV.SO ROOT

C functions: exactly those that oasiskv.h and oasiskv_gpu.h declare. C++: members of classes and functions that the public headers mark
with OASISKV_EXPORT (each of which must be there), their tables and type information; nothing of an Impl, nothing of a
library.
"""

import pathlib
import re
import subprocess
import sys

import tree

PUBLIC = ("common/include/oasiskv", "client/include/oasiskv")
EXPORTED_CLASS = re.compile(r"^(?:class|struct) OASISKV_EXPORT (\w+)", re.M)
EXPORTED_FUNCTION = re.compile(r"^OASISKV_EXPORT [^;{(]*?\b(\w+)\(", re.M)
C_FUNCTION = re.compile(r"^OASISKV_API [^;{(]*?\b(oasiskv_\w+)\(", re.M)
# The owner of a C++ symbol: the name that follows the namespace.
OWNER = re.compile(r"^(?:(?:vtable|typeinfo|typeinfo name|VTT) for )?oasiskv::(\w+)(.*)$")


def declared(root):
    """(C functions, C++ functions, classes) of the public headers."""
    text = "\n".join(header.read_text() for folder in PUBLIC
                     for header in sorted((pathlib.Path(root) / folder).glob("*.h")))
    return (set(C_FUNCTION.findall(text)), set(EXPORTED_FUNCTION.findall(text)), set(EXPORTED_CLASS.findall(text)))


def exported(library):
    lines = subprocess.run(["nm", "--dynamic", "--defined-only", "--demangle", "--format=posix", library],
                           capture_output=True, text=True, check=True).stdout.splitlines()
    # NAME TYPE VALUE SIZE, where a demangled NAME may hold blanks; type A is a version's own symbol.
    rows = [re.match(r"^(.*) ([A-Za-z]) [0-9a-f]+(?: [0-9a-f]+)?$", line) for line in lines]
    return {row.group(1) for row in rows if row and row.group(2) != "A"}


def check(symbols, c_functions, functions, classes):
    findings = []
    seen = set()
    for symbol in sorted(symbols):
        match = OWNER.match(symbol)
        if symbol in c_functions:
            seen.add(symbol)
        elif match and match.group(1) in classes | functions:
            seen.add(match.group(1))
            if match.group(2).startswith("::Impl"):
                findings.append(f"exported but private: {symbol} (mark the nested class OASISKV_HIDDEN)")
        else:
            findings.append(f"exported but in no public header: {symbol}")
    for name in sorted((c_functions | functions | classes) - seen):
        findings.append(f"declared in a public header but not exported: {name}")
    return findings


if __name__ == "__main__":
    sys.exit(tree.report(check(exported(sys.argv[1]), *declared(sys.argv[2])), "exported symbols"))
