// /metrics, oasisctl and Admin agree, and are right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/integration/control_stubs.h"
#include "tests/integration/http_get.h"
#include "tests/integration/mini_cluster.h"

namespace oasiskv::testing {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class DaemonMetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cluster = MiniCluster::Start(
        {DaemonMode::kProcess,
         1,
         {"--metrics_address=127.0.0.1:0", "--default_lease=1h", "--max_lease=1h"}});
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    stubs_ = std::make_unique<ControlStubs>(address());
  }
  const std::string& address() { return cluster_->daemon().addresses().control_address; }
  std::map<std::string, double> Scrape() {
    auto body = HttpGet(cluster_->daemon().addresses().metrics_address, "/metrics");
    EXPECT_TRUE(body.ok()) << body.status();
    return body.ok() ? ParseMetrics(*body) : std::map<std::string, double>();
  }
  ProcessResult Ctl(std::vector<std::string> words) {
    words.insert(words.begin(), OasisctlPath());
    words.push_back("--address=" + address());
    auto result = RunProcess(words);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *result : ProcessResult();
  }
  Json CtlJson(std::vector<std::string> words) {
    words.push_back("--json");
    const ProcessResult result = Ctl(words);
    EXPECT_EQ(result.exit_code, 0) << result.output;
    Json json = Json::parse(result.output, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << result.output;
    return json;
  }

  std::unique_ptr<MiniCluster> cluster_;
  std::unique_ptr<ControlStubs> stubs_;
};

// One random step of a client that has `writers` and `readers` and knows `sealed` names.
struct RandomClient {
  explicit RandomClient(ControlStubs& s) : stubs(s) {}

  void Step() {
    switch (random() % 7) {
      case 0:
      case 1: {
        v1::OpenResponse open;
        const std::string name = absl::StrCat("s", ++names);
        const auto blocks = static_cast<uint32_t>(random() % 40 + 1);
        if (stubs.Open(OpenOf(name, blocks), &open).ok()) {
          ++opens;
          writers.push_back({name, open.grant()});
        }
        break;
      }
      case 2:
      case 3: {
        if (writers.empty()) break;
        const auto [name, grant] = Take(writers);
        const auto blocks = static_cast<uint32_t>(grant.frames_size());
        ASSERT_TRUE(stubs.Commit(grant, 2, blocks).ok());
        ASSERT_TRUE(stubs.Seal(grant, uint64_t{blocks} * 16).ok());
        sealed.push_back(name);
        break;
      }
      case 4: {
        v1::AttachResponse attach;
        if (!sealed.empty() &&
            stubs.Attach(AttachOf(sealed[random() % sealed.size()]), &attach).ok()) {
          ++attaches;
          readers.push_back(attach.grant());
        }
        break;
      }
      case 5:
        if (readers.empty()) break;
        ASSERT_TRUE(stubs.Release(Take(readers)).ok());
        break;
      default:
        if (random() % 2 == 0 && !writers.empty()) {
          ASSERT_TRUE(stubs.Abort(Take(writers).first).ok());
        } else if (!sealed.empty()) {
          ASSERT_TRUE(stubs.ReleaseSequence(Take(sealed)).ok());
        }
    }
  }

  void ReleaseAll() {
    while (!readers.empty()) ASSERT_TRUE(stubs.Release(Take(readers)).ok());
    while (!writers.empty()) ASSERT_TRUE(stubs.Abort(Take(writers).first).ok());
    while (!sealed.empty()) ASSERT_TRUE(stubs.ReleaseSequence(Take(sealed)).ok());
  }

  template <typename T>
  T Take(std::vector<T>& from) {
    std::swap(from[random() % from.size()], from.back());
    T out = from.back();
    from.pop_back();
    return out;
  }

  ControlStubs& stubs;
  std::mt19937 random{20240817};
  int names = 0, opens = 0, attaches = 0;
  std::vector<std::pair<std::string, v1::Grant>> writers;
  std::vector<v1::Grant> readers;
  std::vector<std::string> sealed;
};

TEST_F(DaemonMetricsTest, AfterAThousandRandomOperationsAllSourcesAgree) {
  RandomClient client(*stubs_);
  for (int i = 0; i < 1000; ++i) ASSERT_NO_FATAL_FAILURE(client.Step());

  const v1::GetCapacityResponse truth = stubs_->Capacity();
  auto metrics = Scrape();
  const Json json = CtlJson({"capacity"});
  ASSERT_GT(truth.used_bytes(), 0u);
  EXPECT_EQ(truth.pool_bytes(), truth.free_bytes() + truth.used_bytes() + truth.overhead_bytes());
  EXPECT_EQ(truth.grants_writer(), client.writers.size());
  EXPECT_EQ(truth.grants_reader(), client.readers.size());
  EXPECT_EQ(truth.sequences_open(), client.writers.size());
  EXPECT_EQ(truth.sequences_sealed(), client.sealed.size());

  const std::vector<std::tuple<std::string, uint64_t, const char*>> same = {
      {"oasiskv_pool_bytes", truth.pool_bytes(), "pool_bytes"},
      {"oasiskv_pool_free_bytes", truth.free_bytes(), "free_bytes"},
      {"oasiskv_pool_used_bytes", truth.used_bytes(), "used_bytes"},
      {"oasiskv_pool_quarantined_bytes", truth.quarantined_bytes(), "quarantined_bytes"},
      {"oasiskv_pool_overhead_bytes", truth.overhead_bytes(), "overhead_bytes"},
      {"oasiskv_metadata_bytes", truth.metadata_bytes(), "metadata_bytes"},
      {"oasiskv_slabs", truth.slabs_total(), "slabs_total"},
      {"oasiskv_slabs_free", truth.slabs_free(), "slabs_free"},
      {"oasiskv_sequences{state=\"open\"}", truth.sequences_open(), "sequences_open"},
      {"oasiskv_sequences{state=\"sealed\"}", truth.sequences_sealed(), "sequences_sealed"},
      {"oasiskv_sequences{state=\"released\"}", truth.sequences_released(), "sequences_released"},
      {"oasiskv_grants{kind=\"reader\"}", truth.grants_reader(), "grants_reader"},
      {"oasiskv_grants{kind=\"writer\"}", truth.grants_writer(), "grants_writer"},
      {"oasiskv_arenas", truth.arenas(), "arenas"},
  };
  for (const auto& [series, value, field] : same) {
    ASSERT_TRUE(metrics.contains(series)) << series;
    EXPECT_EQ(metrics[series], static_cast<double>(value)) << series;
    EXPECT_EQ(json[field].get<uint64_t>(), value) << field;
  }
  for (const auto& [series, value] : metrics) {
    if (series.rfind("oasiskv_", 0) != 0) continue;
    EXPECT_GE(value, 0) << series;
    if (series.rfind("oasiskv_pool_", 0) == 0) {
      EXPECT_LE(value, static_cast<double>(truth.pool_bytes())) << series;
    }
  }
  EXPECT_EQ(metrics["oasiskv_opens_total"], client.opens);
  EXPECT_EQ(metrics["oasiskv_attaches_total"], client.attaches);
  EXPECT_EQ(metrics["oasiskv_rpc_calls_total{method=\"KvMemory/Attach\",outcome=\"OK\"}"],
            client.attaches);
  EXPECT_EQ(metrics["oasiskv_rpc_duration_seconds_count{method=\"KvMemory/Attach\"}"],
            client.attaches);
  EXPECT_EQ(CtlJson({"sequences"}).size(),
            truth.sequences_open() + truth.sequences_sealed() + truth.sequences_released());
  EXPECT_EQ(CtlJson({"grants", "list"}).size(), client.writers.size() + client.readers.size());

  ASSERT_NO_FATAL_FAILURE(client.ReleaseAll());
  metrics = Scrape();
  EXPECT_EQ(metrics["oasiskv_pool_used_bytes"], 0);
  EXPECT_EQ(metrics["oasiskv_grants{kind=\"reader\"}"] + metrics["oasiskv_grants{kind=\"writer\"}"],
            0);
  EXPECT_EQ(stubs_->Capacity().free_bytes(), truth.pool_bytes());
}

TEST_F(DaemonMetricsTest, RefusalsAreCountedByTheirReason) {
  ASSERT_TRUE(stubs_->MakeSealed("s", 1).ok());
  v1::OpenResponse open;
  EXPECT_FALSE(stubs_->Open(OpenOf("s", 1), &open).ok());
  EXPECT_FALSE(stubs_->Open(OpenOf("big", 100'000), &open).ok());
  ASSERT_TRUE(stubs_->Open(OpenOf("w", 1), &open).ok());
  ASSERT_TRUE(stubs_->Abort("w").ok());
  EXPECT_FALSE(stubs_->Commit(open.grant(), 2, 1).ok());
  auto metrics = Scrape();
  EXPECT_EQ(metrics["oasiskv_rpc_calls_total{method=\"KvMemory/Open\",outcome=\"ALREADY_EXISTS\"}"],
            1);
  EXPECT_EQ(metrics["oasiskv_rpc_calls_total{method=\"KvMemory/Open\",outcome=\"CAPACITY\"}"], 1);
  EXPECT_EQ(metrics["oasiskv_rpc_calls_total{method=\"KvMemory/Commit\",outcome=\"STALE\"}"], 1);
  EXPECT_EQ(metrics["oasiskv_capacity_refusals_total"], 1);
  EXPECT_EQ(metrics["oasiskv_stale_requests_total"], 1);
  EXPECT_EQ(metrics["oasiskv_expired_requests_total"], 0);
}

TEST_F(DaemonMetricsTest, OasisctlPrintsTablesAndParsableJson) {
  ASSERT_TRUE(stubs_->MakeSealed("a-sequence", 3).ok());
  v1::AttachResponse attach;
  ASSERT_TRUE(stubs_->Attach(AttachOf("a-sequence"), &attach).ok());

  const Json sequences = CtlJson({"sequences", "list", "--tenant=tenant"});
  ASSERT_EQ(sequences.size(), 1u);
  EXPECT_EQ(sequences[0]["name"], "a-sequence");
  EXPECT_EQ(sequences[0]["state"], "sealed");
  EXPECT_EQ(sequences[0]["blocks"], 3);
  EXPECT_EQ(sequences[0]["geometry"]["head_dim"], 64);
  EXPECT_EQ(CtlJson({"sequences", "--tenant=other"}).size(), 0u);
  const Json grants = CtlJson({"grants"});
  ASSERT_EQ(grants.size(), 1u);
  EXPECT_EQ(grants[0]["kind"], "reader");
  EXPECT_EQ(grants[0]["id"].get<uint64_t>(), attach.grant().id());
  const Json health = CtlJson({"health"});
  EXPECT_EQ(health["status"], "SERVING");
  EXPECT_EQ(health["incarnation"].get<uint64_t>(), cluster_->daemon().incarnation());
  EXPECT_EQ(health["fabrics"]["shm"], cluster_->daemon().addresses().endpoint("shm"));
  EXPECT_EQ(health["fabrics"]["ucx"], cluster_->daemon().addresses().endpoint("ucx"));
  EXPECT_EQ(health["draining"], false);

  EXPECT_THAT(Ctl({"sequences"}).output, HasSubstr("a-sequence"));
  EXPECT_THAT(Ctl({"grants"}).output, HasSubstr("reader"));
  EXPECT_THAT(Ctl({"capacity"}).output, HasSubstr("64.00 MiB"));
  EXPECT_THAT(Ctl({"health"}).output, HasSubstr("SERVING"));
  const ProcessResult watched = Ctl({"capacity", "--watch", "--count=1", "--json"});
  EXPECT_EQ(watched.exit_code, 0);
  EXPECT_FALSE(Json::parse(watched.output, nullptr, false).is_discarded()) << watched.output;

  ASSERT_TRUE(stubs_->Drain(true).ok());
  const ProcessResult drained = Ctl({"health"});
  EXPECT_EQ(drained.exit_code, 4);
  EXPECT_THAT(drained.output, HasSubstr("NOT_SERVING"));
}

TEST(OasisctlTest, HelpAtEachNodeAndExitCodes) {
  const auto run = [](std::vector<std::string> words) {
    words.insert(words.begin(), OasisctlPath());
    auto result = RunProcess(words);
    EXPECT_TRUE(result.ok()) << result.status();
    return *result;
  };
  EXPECT_THAT(run({"--help"}).output, HasSubstr("sequences"));
  for (const char* noun : {"capacity", "sequences", "grants", "health", "doctor"}) {
    const ProcessResult help = run({noun, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.output, HasSubstr(absl::StrCat("Usage: oasisctl ", noun)));
  }
  EXPECT_THAT(run({"sequences", "list", "--help"}).output, HasSubstr("--tenant"));
  EXPECT_EQ(run({"-h"}).output, run({"--help"}).output);
  EXPECT_EQ(run({"grants", "-h"}).output, run({"grants", "--help"}).output);
  EXPECT_EQ(run({}).exit_code, 2);
  const ProcessResult unknown = run({"nonsense"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("capacity, sequences, grants, health, doctor"));
  EXPECT_THAT(run({"sequences", "lst"}).output, HasSubstr("'lst' is not a command of sequences"));
  EXPECT_EQ(run({"health", "nonsense"}).exit_code, 2);
  EXPECT_EQ(run({"capacity", "--nonsense"}).exit_code, 2);
  EXPECT_EQ(run({"capacity", "--timeout=0s"}).exit_code, 2);
  EXPECT_EQ(run({"capacity", "--address=a:b:c"}).exit_code, 2);
  EXPECT_EQ(run({"doctor", "--pool_bytes=1GB"}).exit_code, 2);
  EXPECT_EQ(run({"doctor", "--huge_pages=maybe"}).exit_code, 2);
  EXPECT_EQ(run({"doctor", "--verbs_port=256"}).exit_code, 2);
  // No machine has this much memory.
  const ProcessResult unfit = run({"doctor", "--json", "--pool_bytes=1024TiB"});
  EXPECT_EQ(unfit.exit_code, 5);
  EXPECT_THAT(unfit.output, HasSubstr("\"name\": \"memory\""));
  const ProcessResult nobody = run({"capacity", "--address=127.0.0.1:1", "--timeout=5s"});
  EXPECT_EQ(nobody.exit_code, 3);
  EXPECT_THAT(nobody.output, HasSubstr("127.0.0.1:1"));
  ::setenv("OASISKV_ADDRESS", "127.0.0.1:2", 1);
  EXPECT_THAT(run({"health"}).output, HasSubstr("127.0.0.1:2"));
  ::unsetenv("OASISKV_ADDRESS");
}

}  // namespace
}  // namespace oasiskv::testing
