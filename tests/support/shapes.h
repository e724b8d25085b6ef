// Geometries and the identity of the tests' KV.
#pragma once

#include <cstdint>

#include "oasiskv/geometry.h"

namespace oasiskv::testing {

// A whole model's shard of 16-bit elements, K then V.
inline Geometry Shape(uint32_t layers, uint32_t kv_heads, uint32_t head_dim) {
  Geometry g;
  g.layers = layers;
  g.kv_heads = kv_heads;
  g.head_dim = head_dim;
  g.element_type = ElementType::kBFloat16;
  g.total_kv_heads = kv_heads;
  return g;
}

inline Geometry QwenLike() { return Shape(3, 8, 64); }

inline Geometry MlaLike() {
  Geometry g = Shape(4, 1, 576);
  g.packing = Packing::kLatent;
  return g;
}

inline Identity TestIdentity() { return {"test/model", "r1", "tenant"}; }

}  // namespace oasiskv::testing
