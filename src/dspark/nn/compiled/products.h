// Products of a few rows with matrices in any packing, and how threads share them.

#pragma once

#include "bytes.h"

// How a matrix is packed.
enum Packing : int64_t { kVectors = 0, kTiles = 1, kBytes = 2 };

namespace {

// A product with packed weights.
void multiply(int64_t packing, const float* x, int64_t rows, int64_t x_stride, const void* w, int64_t in, float* y,
              int64_t y_stride, Span own) {
  if (packing == kBytes)
    byte_product(x, rows, x_stride, (const char*)w, in, y, y_stride, own);
  else if (packing == kTiles)
    tiled_product(x, rows, x_stride, (const bf16*)w, in, y, y_stride, own);
  else
    product(x, rows, x_stride, (const bf16*)w, in, in, y, y_stride, own);
}

// Bytes of packed weights up to output `out`; a whole group of outputs, if not all of them.
int64_t packed_bytes(int64_t packing, int64_t out, int64_t in) {
  if (packing == kBytes) return up(out, kGroup) * byte_group(in);
  if (packing == kTiles) return up(out, kGroup) * up(in, kDepth) * kTile * sizeof(bf16);
  return out * in * sizeof(bf16);
}

// The share of `count` items that this thread of the team takes.
Span share(int64_t count) {
  const int64_t team = omp_get_num_threads(), rank = omp_get_thread_num();
  return {count * rank / team, count * (rank + 1) / team};
}

// The same in whole groups of outputs.
Span group_share(int64_t count) {
  const Span groups = share(up(count, kGroup));
  return {groups.first * kGroup, groups.last * kGroup < count ? groups.last * kGroup : count};
}

}  // namespace
