// The C ABI's opaque types.
#pragma once

#include <memory>

#include "oasiskv/client.h"
#include "oasiskv/gpu_working_set.h"
#include "oasiskv/oasiskv.h"
#include "oasiskv/oasiskv_gpu.h"
#include "oasiskv/sequence_source.h"
#include "oasiskv/working_set.h"

struct oasiskv_client {
  std::unique_ptr<oasiskv::Client> client;
};

struct oasiskv_buffer {
  oasiskv::RegisteredBuffer buffer;
};

struct oasiskv_producer {
  oasiskv::Producer producer;
};

struct oasiskv_reader {
  std::shared_ptr<oasiskv::Reader> reader;  // shared with the sources made of it
};

struct oasiskv_fetch {
  std::shared_ptr<oasiskv::Reader> reader;  // outlives the batch
  std::unique_ptr<oasiskv::PendingFetch> fetch;
};

struct oasiskv_source {
  std::shared_ptr<oasiskv::EntrySource> source;
};

struct oasiskv_gpu_working_set {
  std::unique_ptr<oasiskv::GpuWorkingSet> ws;
};

struct oasiskv_working_set {
  std::unique_ptr<oasiskv::WorkingSet> ws;
};
