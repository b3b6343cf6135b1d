// Products of rows with matrices in any packing, and how threads share them.

#pragma once

#include "bytes.h"

// How a matrix is packed.
enum Packing : int64_t { kVectors = 0, kTiles = 1, kBytes = 2 };

namespace {

// Rows [rows, in] as products in one packing take them: each is taken once, by any thread.
struct Operand {
  int64_t packing, rows, in;
  RowTiles tiles;
  Line* memory;

  Operand(int64_t packing, int64_t rows, int64_t in, Line* memory)
      : packing(packing), rows(rows), in(in), tiles(rows, up(in, packing == kBytes ? kByteDepth : kDepth)), memory(memory) {}

  // Lines of memory that it needs.
  static int64_t lines(int64_t packing, int64_t rows, int64_t in) {
    const Operand operand(packing, rows, in, nullptr);
    if (packing == kBytes) return 2 * operand.tiles.lines() + up(rows * sizeof(float), kLine);
    return packing == kTiles ? operand.tiles.lines() : up(rows * in * sizeof(float), kLine);
  }

  void take(int64_t t, const float* row) const {
    if (packing == kBytes)
      scales()[t] = split_row(row, in, tiles, t, memory, memory + tiles.lines());
    else if (packing == kTiles)
      round_row(row, in, tiles, t, memory);
    else
      std::memcpy(floats() + t * in, row, in * sizeof(float));
  }

  // The columns of y [rows, .] that `own` names, with weights w in its packing.
  void multiply(const void* w, float* y, int64_t y_stride, Span own) const {
    if (packing == kBytes)
      byte_product(tiles, memory, memory + tiles.lines(), scales(), (const char*)w, byte_group(in), y, y_stride, own);
    else if (packing == kTiles)
      tiled_product(tiles, memory, (const bf16*)w, y, y_stride, own);
    else
      product(floats(), rows, in, (const bf16*)w, in, in, y, y_stride, own);
  }

  // silu(gate) * up for the groups that `own` names, of weights that hold all gates before all ups: rows of `to`. Tiles.
  void multiply_gated(const void* w, const Operand& to, Span own) const {
    gated_product(tiles, memory, (const bf16*)w, to.in / kGroup, to.tiles, to.memory, own);
  }

 private:
  float* floats() const { return (float*)memory; }
  float* scales() const { return (float*)(memory + 2 * tiles.lines()); }
};

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
