"""Each check reports what it is there for: a small tree with one fault of each kind, and the same tree without it."""

import pathlib
import shutil
import sys
import tempfile
import unittest

import format as format_check
import headers
import hygiene
import layering
import links

CXX = "g++"


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
        self.write("server/a.cc", '#include "client/connection/session.h"\n')
        self.assert_reports(layering.check(self.root), "server/a.cc:1", "may not include client/")

    def test_common_includes_nothing_above_it(self):
        self.write("common/a.cc", '#include "server/pool/pool.h"\n')
        self.assert_reports(layering.check(self.root), "may not include server/")

    def test_tools_know_no_server(self):
        self.write("tools/a.cc", '#include "server/pool/pool.h"\n')
        self.assert_reports(layering.check(self.root), "may not include server/")

    def test_foreign_headers_have_one_home(self):
        for header in ("ucp/api/ucp.h", "infiniband/verbs.h", "cuda_runtime.h", "cuda.h"):
            self.write("common/a.cc", f"#include <{header}>\n")
            self.assert_reports(layering.check(self.root), "common/a.cc:1", header)
        self.write("common/a.cc", "")
        self.write("common/fabric/ucx/a.cc", "#include <ucp/api/ucp.h>\n")
        self.write("common/cuda/a.cc", "#include <cuda_runtime.h>\n")
        self.assertEqual(layering.check(self.root), [])

    def test_generated_and_grpc_headers_stay_out_of_headers(self):
        self.write("client/a.h", '#include "oasiskv/v1/types.pb.h"\n')
        self.assert_reports(layering.check(self.root), "types.pb.h")
        self.write("client/a.h", "#include <grpcpp/grpcpp.h>\n")
        self.assert_reports(layering.check(self.root), "grpcpp/grpcpp.h")

    def test_relative_includes(self):
        self.write("common/a.cc", '#include "../common/good.h"\n')
        self.assert_reports(layering.check(self.root), "is relative")

    def test_long_files(self):
        self.write("common/a.cc", "\n" * 600)
        self.assertEqual(hygiene.check(self.root), [])
        self.write("common/a.cc", "\n" * 401)
        self.assert_reports(hygiene.check(self.root), "401 lines")

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

    def test_public_headers_that_need_the_tree(self):
        self.write("client/include/oasiskv/a.h", '#pragma once\n#include "common/good.h"\n')
        self.assert_reports(headers.check(self.root, CXX, []), "client/include/oasiskv/a.h")

    @unittest.skipUnless(shutil.which("clang-format"), "needs clang-format")
    def test_format(self):
        self.write(".clang-format", "BasedOnStyle: Google\n")
        self.assertEqual(format_check.check(self.root, "clang-format"), [])
        self.write("common/a.cc", "int  x ;\n")
        self.assert_reports(format_check.check(self.root, "clang-format"), "common/a.cc", "clang-format -i")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CXX = sys.argv.pop()
    unittest.main()
