// The doctor's checks of RDMA devices, GPUs and what they need, over machines made of files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "oasiskv/error.h"
#include "tests/unit/tools/doctor_machine.h"
#include "tools/oasisctl/doctor/check.h"

namespace oasiskv::oasisctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(Machine, SmallLimitOnLockedMemoryFailsWhereRdmaIs) {
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "0000:0000:0000:0000:0000:ffff:0a00:0001", "eth1");
  Takes("mlx5_0", "::ffff:10.0.0.1");
  world_.locked_memory = {8 * kMiB, 64 * kMiB};
  const Check check = Of("locked_memory");
  EXPECT_EQ(check.health, Health::kFail);
  EXPECT_THAT(check.found, HasSubstr("8.00 MiB"));
  EXPECT_THAT(check.fix, HasSubstr("LimitMEMLOCK=infinity"));
  EXPECT_THAT(check.fix, HasSubstr("the hard limit is 64.00 MiB"));
  EXPECT_GE(check.facts["needed_bytes"], 2 * kGiB);

  world_.locked_memory = {kUnlimited, kUnlimited};
  EXPECT_EQ(Of("locked_memory").health, Health::kOk);
  // A limit of one pool is not enough: it is registered twice.
  world_.locked_memory = {kGiB + 64 * kMiB, kUnlimited};
  EXPECT_EQ(Of("locked_memory").health, Health::kFail);
  EXPECT_THAT(Of("locked_memory").fix, Not(HasSubstr("hard limit")));
  wants_.pool_bytes = 256 * kMiB;
  EXPECT_EQ(Of("locked_memory").health, Health::kOk);
}

TEST_F(Machine, CapabilityToLockFreesOfTheLimit) {
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "0000:0000:0000:0000:0000:ffff:0a00:0001", "eth1");
  world_.locked_memory = {8 * kMiB, 8 * kMiB};
  File("/proc/self/status", "CapEff:\t0000000000004000\n");
  EXPECT_EQ(Of("locked_memory").health, Health::kOk);
  EXPECT_THAT(Of("locked_memory").found, HasSubstr("IPC_LOCK"));
  File("/proc/self/status", "CapEff:\t000001ffffffbfff\n");  // all but this one
  EXPECT_EQ(Of("locked_memory").health, Health::kFail);
}

TEST_F(Machine, SeveralDevicesAreListedWithPortsAndGids) {
  RdmaPort("mlx5_0", 1, "1: DOWN", "", "");
  RdmaPort("mlx5_1", 1, "4: ACTIVE", "0000:0000:0000:0000:0000:ffff:0a00:0001", "eth1");
  RdmaPort("mlx5_1", 2, "4: ACTIVE", "2001:0db8:0000:0000:0000:0000:0000:0001", "eth2");
  File("/sys/class/infiniband/mlx5_1/device/numa_node", "1");
  File("/sys/class/infiniband_verbs/uverbs7/ibdev", "mlx5_1");
  Takes("mlx5_1", "::ffff:10.0.0.1");
  const Check check = Of("rdma_devices");
  EXPECT_EQ(check.health, Health::kOk);
  EXPECT_THAT(check.found, HasSubstr("mlx5_0 port 1: DOWN, Ethernet, no GID"));
  EXPECT_THAT(check.found, HasSubstr("GID 1 RoCE v2 ::ffff:10.0.0.1 (eth1)"));
  EXPECT_THAT(check.found, HasSubstr("mlx5_1 port 2: ACTIVE, Ethernet, NUMA node 1"));
  const auto& device = check.facts["devices"][1];
  EXPECT_EQ(device["device_file"], "/dev/infiniband/uverbs7");
  EXPECT_EQ(device["ports"][1]["gids"].size(), 1u);  // not the empty places
  EXPECT_EQ(device["ports"][1]["gids"][0]["address"], "2001:db8::1");
  EXPECT_EQ(Of("rdma_choice").health, Health::kOk);
  EXPECT_THAT(Of("rdma_choice").found, HasSubstr("mlx5_1 port 1, GID index 1"));

  File("/sys/devices/system/node/node1/meminfo", "Node 1 MemFree:        524288 kB\n");
  EXPECT_EQ(Of("numa").health, Health::kWarn);
  EXPECT_THAT(Of("numa").fix, HasSubstr("--numa_node=1"));
  wants_.numa_node = 1;
  EXPECT_THAT(Of("numa").fix, HasSubstr("lower --pool_bytes"));  // the node has 512 MiB
  wants_.pool_bytes = 256 * kMiB;
  EXPECT_EQ(Of("numa").health, Health::kOk);
}

TEST_F(Machine, DevicesWhoseKernelPortTheLibraryDoesNotTakeFail) {
  RdmaPort("mlx5_0", 1, "1: DOWN", "", "");
  EXPECT_EQ(Of("rdma_devices").health, Health::kWarn);
  EXPECT_THAT(Of("rdma_devices").fix, HasSubstr("ip link set"));
  EXPECT_EQ(Of("rdma_choice").health, Health::kWarn);
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "", "");
  EXPECT_EQ(Of("rdma_choice").health, Health::kWarn);  // no GID that could be chosen
  EXPECT_THAT(Of("rdma_choice").fix, HasSubstr("ip address add"));
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "0000:0000:0000:0000:0000:ffff:0a00:0001", "eth1");
  File("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
  EXPECT_EQ(Of("rdma_choice").health, Health::kFail);
  EXPECT_THAT(Of("rdma_choice").fix, HasSubstr("ibverbs-providers"));
  EXPECT_THAT(Of("rdma_choice").fix, HasSubstr("/dev/infiniband/uverbs0 is missing"));
  File("/dev/infiniband/uverbs0", "");
  EXPECT_THAT(Of("rdma_choice").fix, HasSubstr("/dev/infiniband/uverbs0 can be opened"));
}

TEST_F(Machine, ChoicesThatReachNotFarAreWarnedOf) {
  RdmaPort("rxe0", 1, "4: ACTIVE", "fe80:0000:0000:0000:0000:0000:0000:0001", "eth1");
  Takes("rxe0", "fe80::1");
  EXPECT_EQ(Of("rdma_choice").health, Health::kWarn);
  EXPECT_THAT(Of("rdma_choice").fix, HasSubstr("dev eth1"));
  Takes("rxe0", "::ffff:10.0.0.1");
  EXPECT_EQ(Of("rdma_choice").health, Health::kOk);
  world_.verbs_port->max_registration_bytes = 512 * kMiB;
  EXPECT_THAT(Of("rdma_choice").fix, HasSubstr("--arena_bytes"));
  // A missing device is a failure when it was asked for.
  wants_.verbs.device = "mlx5_9";
  world_.verbs_port = MakeError(ErrorCode::kUnsupported, "there is no RDMA device 'mlx5_9'");
  EXPECT_EQ(Of("rdma_choice").health, Health::kFail);
}

TEST_F(Machine, UcxVariables) {
  EXPECT_EQ(Of("ucx").health, Health::kOk);
  File("/sys/class/net/eth0/mtu", "1500");
  world_.environment = {{"HOME", "/"}, {"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "eth0"}};
  EXPECT_EQ(Of("ucx").health, Health::kWarn);
  EXPECT_THAT(Of("ucx").fix, HasSubstr("unset UCX_NET_DEVICES UCX_TLS"));
  for (const char* good : {"rc", "rc_x,sm", "ud_verbs", "^cma", "all"}) {
    world_.environment["UCX_TLS"] = good;
    EXPECT_EQ(Of("ucx").health, Health::kWarn) << good;
  }
  world_.environment["UCX_TLS"] = "sm,self";
  EXPECT_EQ(Of("ucx").health, Health::kFail);
  world_.environment = {{"UCX_NET_DEVICES", "eth0,mlx5_0:1"}};
  EXPECT_EQ(Of("ucx").health, Health::kFail);
  EXPECT_THAT(Of("ucx").fix, HasSubstr("(mlx5_0)"));
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "", "");
  EXPECT_EQ(Of("ucx").health, Health::kWarn);
  world_.ucx_version = MakeError(ErrorCode::kUnsupported, "no such library");
  EXPECT_EQ(Of("ucx").health, Health::kFail);
}

TEST_F(Machine, Gpus) {
  EXPECT_EQ(Of("gpu").health, Health::kOk);
  RdmaPort("mlx5_0", 1, "4: ACTIVE", "", "");
  File("/proc/driver/nvidia/gpus/0000:17:00.0/information", "Model: \t NVIDIA H200\nIRQ: 1\n");
  EXPECT_EQ(Of("gpu").health, Health::kWarn);
  EXPECT_THAT(Of("gpu").fix, HasSubstr("/dev/nvidia0"));
  File("/dev/nvidia0", "");
  File("/dev/nvidia-uvm", "");
  EXPECT_THAT(Of("gpu").found, HasSubstr("NVIDIA H200 (0000:17:00.0)"));
  EXPECT_THAT(Of("gpu").fix, HasSubstr("modprobe nvidia_peermem"));
  EXPECT_EQ(Of("gpu").facts["device_files"], 1u);
  File("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64");
  EXPECT_EQ(Of("gpu").health, Health::kOk);
  File("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module");
  File("/sys/module/nvidia_peermem/version", "1");
  EXPECT_EQ(Of("gpu").health, Health::kOk);
}

TEST_F(Machine, GpuDirect) {
  EXPECT_EQ(Of("gpudirect").health, Health::kOk);  // without a GPU nothing is missing
  EXPECT_EQ(Of("gpudirect").facts["dmabuf"], false);
  Takes("mlx5_0", "::ffff:10.0.0.1");
  EXPECT_EQ(Of("gpudirect").facts["dmabuf"], true);
  EXPECT_THAT(Of("gpudirect").found, HasSubstr("mlx5_0 registers"));
  File("/proc/driver/nvidia/gpus/0000:17:00.0/information", "Model: \t NVIDIA H200\nIRQ: 1\n");
  EXPECT_EQ(Of("gpudirect").health, Health::kOk);
  world_.verbs_port->device_memory = MakeError(ErrorCode::kUnsupported, "no such symbol");
  EXPECT_EQ(Of("gpudirect").health, Health::kWarn);
  EXPECT_THAT(Of("gpudirect").found, HasSubstr("no such symbol"));
}

}  // namespace
}  // namespace oasiskv::oasisctl
