// What a Producer is made of.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "client/connection/core.h"
#include "client/producer/frame_stage.h"
#include "common/fabric/fabric.h"
#include "oasiskv/producer.h"

namespace oasiskv {

// Thread contract: not safe for concurrent use.
//
// For each layer tokens come in order, so what is written whole is a prefix of its blocks. Of the
// block that is partly filled only the producer has the bytes (one block per layer) until later
// tokens or Seal complete it.
class Producer::Impl {
 public:
  Impl(std::shared_ptr<client::Core> core, std::shared_ptr<client::Session> session,
       fabric::Connection* writer, std::shared_ptr<client::GrantState> grant,
       const ProducerSpec& spec, const client::GivenGrant& given);
  ~Impl();

  absl::Status Extend(uint32_t blocks);
  absl::Status WriteTokens(LayerIndex layer, uint64_t first_token, uint32_t tokens, KvView keys,
                           KvView values);
  absl::Status CommitWritten();
  absl::Status Commit(uint32_t first_layer, uint32_t layer_count, uint32_t first_block,
                      uint32_t block_count);
  absl::Status Seal(const SealSpec& spec);
  absl::Status Abort(const std::string& reason);

  const Geometry& geometry() const { return geometry_; }
  uint32_t blocks() const { return static_cast<uint32_t>(view_->frames.size()); }

 private:
  enum class Phase { kWriting, kSealing, kSealed, kAborted };

  // Of one layer.
  struct LayerState {
    uint64_t next_token = 0;
    uint32_t committed = 0;  // blocks from 0 on that are published
    // Entries of the block that next_token lies in; empty: none begun.
    std::vector<std::byte> partial;
    // [block][head], of complete blocks: for Seal's first top-K.
    std::vector<std::byte> summaries;
    // [block][head], of written blocks, where asked for.
    std::vector<uint32_t> checksums;
    bool tail_written = false;  // Seal wrote the partly filled block
  };

  absl::Status CheckPhase(const char* call) const;
  absl::Status CheckGrant() const;
  absl::Status CheckSeal(const SealSpec& spec) const;
  uint32_t WholeBlocks(const LayerState& layer) const {
    return static_cast<uint32_t>(layer.next_token / geometry_.block_tokens) +
           (layer.tail_written ? 1 : 0);
  }
  // Sends what the stage holds and, once it is in place, notes it in the layers.
  absl::Status Flush(client::FrameStage& stage);
  absl::Status WriteTail();
  // Publishes without further checks, in calls of bounded size.
  absl::Status Publish(const std::vector<client::LayerBlocks>& ranges);
  std::vector<int32_t> FirstTopK(const SealSpec& spec) const;
  // The last writes are done: tells the daemon so and takes no more.
  void Fence();
  absl::Status Explain(const absl::Status& status) const;

  const std::shared_ptr<client::Core> core_;
  const std::shared_ptr<client::Session> session_;
  fabric::Connection* const writer_;  // the session's
  const std::shared_ptr<client::GrantState> grant_;
  const std::string name_;
  const SequenceId sequence_;
  const Identity identity_;
  const Geometry geometry_;
  const bool with_checksums_;

  std::shared_ptr<const fabric::GrantView> view_;
  std::vector<LayerState> layers_;
  client::FrameStage stage_;
  Phase phase_ = Phase::kWriting;
};

}  // namespace oasiskv
