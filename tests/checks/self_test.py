"""Each check reports what it is there for: a small tree with one fault of each kind, and the same tree without it."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import format as format_check
import headers
import hygiene
import layering
import links

CXX = "g++"
TREE = pathlib.Path(__file__).resolve().parents[2]


class Checks(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.root = pathlib.Path(self._folder.name)
        self.write("common/good.h", "#pragma once\n#include <cstdint>\ninline uint32_t Two() { return 2; }\n")

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def assert_reports(self, findings, *words):
        self.assertEqual(len(findings), 1, findings)
        for word in words:
            self.assertIn(word, findings[0])

    def test_a_good_tree_is_clean(self):
        self.assertEqual(layering.check(self.root), [])
        self.assertEqual(hygiene.check(self.root), [])
        self.assertEqual(headers.check(self.root, CXX, []), [])

    def test_server_and_client_never_include_each_other(self):
        self.write("server/core/a.cc", '#include "client/connection/session.h"\n')
        self.assert_reports(layering.check(self.root), "server/core/a.cc:1", "may not include client/")

    def test_common_includes_nothing_above_it(self):
        self.write("common/a.cc", '#include "server/pool/pool.h"\n')
        self.assert_reports(layering.check(self.root), "may not include server/")

    def test_tools_know_no_server(self):
        self.write("tools/oasisctl/a.cc", '#include "server/pool/pool.h"\n')
        self.assert_reports(layering.check(self.root), "may not include server/")

    def includes(self, file, included):
        """What layering says of `file` when it includes `included`."""
        name = re.sub("^(common|client)/include/", "", included)
        self.write(included, "#pragma once\n")
        self.write(file, f'#include "{name}"\n')
        findings = layering.check(self.root)
        (self.root / file).unlink()
        (self.root / included).unlink()
        return findings

    def assert_stands_below(self, low, high):
        with self.subTest(low=low, high=high):
            self.assertEqual(self.includes(f"{high}/a.cc", f"{low}/b.h"), [])
            self.assert_reports(self.includes(f"{low}/a.cc", f"{high}/b.h"), f"{low}/a.cc:1", "stands below", f"{high}/b.h")

    def test_folders_include_what_stands_below_them(self):
        for first, order in {
                "common": ["include", "", "fabric", "fabric/shm"],
                "server": ["pool", "sequence", "lease", "core", "options", "daemon"],
                "client": ["include", "selection", "connection", "producer", "source", "working_set",
                           "working_set/cuda/kernels", "working_set/cuda/host", "working_set/cuda", "c_api"],
                "tools": ["oasisctl", "oasisctl/doctor"]}.items():
            folders = [f"{first}/{folder}".rstrip("/") for folder in order]
            for low, high in zip(folders, folders[1:]):
                self.assert_stands_below(low, high)
        for low, high in (("common", "common/cuda"), ("server/core", "server/service"), ("client/connection", "client/reader"),
                          ("client/working_set", "client/working_set/cpu"), ("tools/bench/rig", "tools/bench/gpu"),
                          ("tools/bench/rig", "tools/bench/step")):
            self.assert_stands_below(low, high)

    def test_neighbours_do_not_include_each_other(self):
        for one, other in (("common/fabric", "common/cuda"), ("common/fabric/shm", "common/fabric/ucx"),
                           ("common/fabric/ucx", "common/fabric/verbs"), ("server/options", "server/service"),
                           ("client/producer", "client/reader"), ("client/working_set/cpu", "client/working_set/cuda/kernels")):
            with self.subTest(one=one, other=other):
                self.assert_reports(self.includes(f"{one}/a.cc", f"{other}/b.h"), f"{one}/a.cc:1", "beside it")
                self.assert_reports(self.includes(f"{other}/a.cc", f"{one}/b.h"), f"{other}/a.cc:1", "beside it")

    def test_the_list_of_fabrics_names_each_of_them(self):
        self.assertEqual(self.includes("common/fabric/registry.cc", "common/fabric/ucx/a.h"), [])
        self.assert_reports(self.includes("common/fabric/fabric.cc", "common/fabric/ucx/a.h"), "stands below")

    def test_common_includes_no_public_header_of_the_client(self):
        self.write("client/include/oasiskv/a.h", "#pragma once\n")
        self.write("common/a.cc", '#include "oasiskv/a.h"\n')
        self.assert_reports(layering.check(self.root), "common/ may not include client/")

    def test_a_folder_without_a_place_in_the_order(self):
        self.write("client/telepathy/a.h", "#pragma once\n")
        self.write("client/telepathy/b.h", "#pragma once\n")
        self.assert_reports(layering.check(self.root), "client/telepathy/", "ORDER")

    def test_foreign_headers_have_one_home(self):
        for header in ("ucp/api/ucp.h", "infiniband/verbs.h", "cuda_runtime.h", "cuda.h"):
            self.write("common/a.cc", f"#include <{header}>\n")
            self.assert_reports(layering.check(self.root), "common/a.cc:1", header)
        self.write("common/a.cc", "")
        self.write("common/fabric/ucx/a.cc", "#include <ucp/api/ucp.h>\n")
        self.write("common/cuda/a.cc", "#include <cuda_runtime.h>\n")
        self.assertEqual(layering.check(self.root), [])

    def test_generated_and_grpc_headers_stay_out_of_headers(self):
        self.write("client/connection/a.h", '#include "oasiskv/v1/types.pb.h"\n')
        self.assert_reports(layering.check(self.root), "types.pb.h")
        self.write("client/connection/a.h", "#include <grpcpp/grpcpp.h>\n")
        self.assert_reports(layering.check(self.root), "grpcpp/grpcpp.h")

    def test_relative_includes(self):
        self.write("common/a.cc", '#include "../common/good.h"\n')
        self.assert_reports(layering.check(self.root), "is relative")

    def test_long_files(self):
        self.write("common/a.cc", "\n" * 600)
        self.assertEqual(hygiene.check(self.root), [])
        self.write("common/a.cc", "\n" * 601)
        self.assert_reports(hygiene.check(self.root), "601 lines")

        self.write("common/a.cc", "")
        self.write("common/a.cuh", "\n" * 601)
        self.assert_reports(hygiene.check(self.root), "common/a.cuh")

    def test_folders_with_many_files(self):
        for number in range(hygiene.MAX_FILES):
            self.write(f"server/pool/{number}.h", "")
        self.assertEqual(hygiene.check(self.root), [])
        self.write("server/pool/last.h", "")
        self.assert_reports(hygiene.check(self.root), "server/pool", "31 files")

        hygiene.LARGE_FOLDERS["server/pool"] = "a test"
        self.addCleanup(hygiene.LARGE_FOLDERS.pop, "server/pool")
        self.assertEqual(hygiene.check(self.root), [])
        (self.root / "server/pool/last.h").unlink()
        self.assert_reports(hygiene.check(self.root), "server/pool", "needs no exception")

    def test_paths_of_one_machine(self):
        self.write("README.md", "see /" + "home/somebody/notes\n")
        self.assert_reports(hygiene.check(self.root), "README.md:1", "somebody")

    def test_scripts_that_do_not_parse(self):
        self.write("tools/a.sh", "if true; then\n")
        self.assert_reports(hygiene.check(self.root), "tools/a.sh")
        self.write("tools/a.sh", "")
        self.write("tools/a.py", "def f(:\n")
        self.assert_reports(hygiene.check(self.root), "tools/a.py:1")

    def test_links_that_lead_nowhere(self):
        self.write("common/README.md", "# Two words, `code`\n[top](../README.md#one) [web](https://example.org/x.md)\n")
        self.write("README.md", "# One\n[a](common/README.md#two-words-code) [b](#one) [folder](common/) `[c](gone.md)`\n"
                                "```\n[d](gone.md)\n```\n")
        self.assertEqual(links.check(self.root), [])
        for link in ("gone.md", "common/gone.md#one", "common/README.md#three", "#two"):
            self.write("README.md", f"# One\n\nsee [this]({link})\n[top](#one)\n")
            self.assert_reports(links.check(self.root), "README.md:3", link)
        self.write("README.md", "# One\n[`common/`](gone/)\n")
        self.assert_reports(links.check(self.root), "README.md:2", "gone/")

    def test_headers_that_lean_on_their_includer(self):
        self.write("common/a.h", "#pragma once\ninline std::string Name() { return {}; }\n")
        self.assert_reports(headers.check(self.root, CXX, []), "common/a.h")

        # The build proves a header that its own source includes first, and only then.
        self.write("common/a.cc", '#include <string>\n#include "common/a.h"\n')
        self.assert_reports(headers.check(self.root, CXX, []), "common/a.h")
        self.write("common/a.cc", '#include "common/a.h"\n#include <string>\n')
        self.assertEqual(headers.check(self.root, CXX, []), [])

    def test_headers_without_a_guard(self):
        self.write("common/a.h", "struct Once {};\n")
        self.assert_reports(headers.check(self.root, CXX, []), "common/a.h")
        self.write("common/a.h", "#pragma once\n")
        self.write("common/a.cuh", "__global__ void Kernel();\n")
        self.assert_reports(headers.check(self.root, CXX, []), "common/a.cuh", "guard")
        self.write("common/a.cuh", "#pragma once\n__global__ void Kernel();\n")
        self.assertEqual(headers.check(self.root, CXX, []), [])

    def test_public_headers_that_need_the_tree(self):
        self.write("client/include/oasiskv/a.h", '#pragma once\n#include "common/good.h"\n')
        self.assert_reports(headers.check(self.root, CXX, []), "client/include/oasiskv/a.h")

    def abi(self, action):
        """Builds a small library with a C interface and runs tools/abi.sh on it."""
        subprocess.run(["g++", "-shared", "-fPIC", "-g", "-Iclient/include", "-o", "a.so", "client/a.cc"], cwd=self.root, check=True)
        return subprocess.run(["tools/abi.sh", action, "a.so"], cwd=self.root, capture_output=True, text=True, check=False)

    @unittest.skipUnless(shutil.which("abidiff") and shutil.which("g++"), "needs abigail-tools and g++")
    def test_changes_of_the_c_interface(self):
        self.write("tools/abi.sh", (TREE / "tools/abi.sh").read_text())
        (self.root / "tools/abi.sh").chmod(0o755)
        self.write("tests/checks/README.md", "")
        self.write("client/a.cc", '#include "oasiskv/oasiskv.h"\nint oasiskv_size(const oasiskv_layout* a) { return a->bytes; }\n'
                                  "int Private(double) { return 0; }\n")
        header = '#pragma once\nstruct oasiskv_layout { %s };\nextern "C" int oasiskv_size(const oasiskv_layout* a);\n'
        self.write("client/include/oasiskv/oasiskv.h", header % "int blocks; int bytes;")
        self.assertEqual(self.abi("--renew").returncode, 0)
        self.assertEqual(self.abi("--check").returncode, 0)
        self.assertNotIn("Private", (self.root / "tests/checks/liboasiskv.abi").read_text())

        self.write("client/include/oasiskv/oasiskv.h", header % "long blocks; int bytes;")
        changed = self.abi("--check")
        self.assertEqual(changed.returncode, 1)
        self.assertIn("blocks", changed.stdout)
        self.assertIn("tools/abi.sh --renew a.so", changed.stderr)

    @unittest.skipUnless(shutil.which("clang-format"), "needs clang-format")
    def test_format(self):
        self.write(".clang-format", "BasedOnStyle: Google\n")
        self.assertEqual(format_check.check(self.root, "clang-format"), [])
        self.write("common/a.cc", "int  x ;\n")
        self.assert_reports(format_check.check(self.root, "clang-format"), "common/a.cc", "clang-format -i")
        self.write("common/a.cc", "int x;\n")
        self.write("common/a.cuh", "int  x ;\n")
        self.assert_reports(format_check.check(self.root, "clang-format"), "common/a.cuh", "clang-format -i")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CXX = sys.argv.pop()
    unittest.main()
