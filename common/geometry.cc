#include "oasiskv/geometry.h"

#include "absl/strings/str_format.h"
#include "oasiskv/error.h"

namespace oasiskv {
namespace {

absl::Status CheckRange(const char* field, uint64_t value, uint64_t low, uint64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return MakeError(
      ErrorCode::kInvalidArgument,
      absl::StrFormat("geometry.%s is %d; it must be between %d and %d", field, value, low, high));
}

}  // namespace

uint32_t ElementBytes(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      return 2;
    case ElementType::kFloat32:
      return 4;
    case ElementType::kUnspecified:
      break;
  }
  return 0;
}

absl::string_view ElementTypeName(ElementType type) {
  switch (type) {
    case ElementType::kFloat16:
      return "float16";
    case ElementType::kBFloat16:
      return "bfloat16";
    case ElementType::kFloat32:
      return "float32";
    case ElementType::kUnspecified:
      break;
  }
  return "unspecified";
}

absl::string_view PackingName(Packing packing) {
  switch (packing) {
    case Packing::kKeyThenValue:
      return "key_then_value";
    case Packing::kLatent:
      return "latent";
    case Packing::kUnspecified:
      break;
  }
  return "unspecified";
}

absl::Status Geometry::Validate() const {
  struct {
    const char* field;
    uint64_t value, low, high;
  } const ranges[] = {
      {"layers", layers, 1, 1024},
      {"kv_heads", kv_heads, 1, 1024},
      {"head_dim", head_dim, 1, 8192},
      {"block_tokens", block_tokens, 1, 1024},
      {"total_kv_heads", total_kv_heads, kv_heads, 65536},
  };
  for (const auto& r : ranges) {
    if (auto s = CheckRange(r.field, r.value, r.low, r.high); !s.ok()) return s;
  }
  if (ElementBytes(element_type) == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "geometry.element_type is unspecified; give float16, bfloat16 or float32");
  }
  if (packing != Packing::kKeyThenValue && packing != Packing::kLatent) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "geometry.packing is unspecified; give key_then_value or latent");
  }
  if (packing == Packing::kLatent && kv_heads != 1) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat("geometry.kv_heads is %d; latent packing has exactly 1", kv_heads));
  }
  if (uint64_t{first_head} + kv_heads > total_kv_heads) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat("geometry.first_head %d + kv_heads %d exceeds total_kv_heads %d",
                        first_head, kv_heads, total_kv_heads));
  }
  const uint64_t vectors = packing == Packing::kLatent ? block_tokens : 2 * block_tokens;
  const uint64_t frame =
      uint64_t{layers} * kv_heads * (vectors + 2) * head_dim * ElementBytes(element_type);
  if (frame > kMaxFrameBytes) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        absl::StrFormat("geometry: one frame would take %d bytes, the most is %d; use a "
                        "smaller block_tokens or more shards",
                        frame, kMaxFrameBytes));
  }
  return absl::OkStatus();
}

absl::Status Geometry::CheckSame(const Geometry& asked) const {
  struct {
    const char* field;
    uint32_t has, wants;
  } const numbers[] = {
      {"layers", layers, asked.layers},
      {"kv_heads", kv_heads, asked.kv_heads},
      {"head_dim", head_dim, asked.head_dim},
      {"block_tokens", block_tokens, asked.block_tokens},
      {"first_head", first_head, asked.first_head},
      {"total_kv_heads", total_kv_heads, asked.total_kv_heads},
  };
  for (const auto& n : numbers) {
    if (n.has != n.wants) {
      return MakeError(ErrorCode::kGeometryMismatch,
                       absl::StrFormat("geometry.%s: the sequence has %d, the caller expects %d",
                                       n.field, n.has, n.wants));
    }
  }
  if (element_type != asked.element_type) {
    return MakeError(
        ErrorCode::kGeometryMismatch,
        absl::StrFormat("geometry.element_type: the sequence has %s, the caller expects %s",
                        ElementTypeName(element_type), ElementTypeName(asked.element_type)));
  }
  if (packing != asked.packing) {
    return MakeError(ErrorCode::kGeometryMismatch,
                     absl::StrFormat("geometry.packing: the sequence has %s, the caller expects %s",
                                     PackingName(packing), PackingName(asked.packing)));
  }
  return absl::OkStatus();
}

uint64_t Geometry::frame_stride() const {
  return (uint64_t{frame_bytes()} + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
}

std::string Geometry::ToString() const {
  return absl::StrFormat("%d layers x %d heads (of %d, from %d) x %d, %d tokens per block, %s, %s",
                         layers, kv_heads, total_kv_heads, first_head, head_dim, block_tokens,
                         ElementTypeName(element_type), PackingName(packing));
}

absl::Status Identity::CheckSame(const Identity& asked) const {
  struct {
    const char* field;
    const std::string &has, &wants;
  } const fields[] = {{"model", model, asked.model},
                      {"revision", revision, asked.revision},
                      {"tenant", tenant, asked.tenant}};
  for (const auto& f : fields) {
    if (f.has != f.wants) {
      return MakeError(
          ErrorCode::kIdentityMismatch,
          absl::StrFormat("identity.%s: the sequence has \"%s\", the caller expects \"%s\"",
                          f.field, f.has, f.wants));
    }
  }
  return absl::OkStatus();
}

}  // namespace oasiskv
