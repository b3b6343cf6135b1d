// Where keys and values lie.
//
// K key/value heads, L layers, h head width.

#pragma once

#include "products.h"

struct Shape {
  int64_t width, inner, heads, kv_heads, head_width;
  int64_t packing;  // of all matrices
  float eps;
};

// Where a row stands: at `position` of the request whose pages `table` lists in order, seeing its first `visible`
// positions.
struct Row {
  char* pool;
  const int32_t* table;
  int64_t position, visible;
};

namespace {

constexpr int64_t kPage = 16;    // positions of a page

// Pages [., L, 2K] of cells, one for the keys or the values of a head at kPage positions.
//
// Without tiles, cells are float32, keys [h, kPage] so that a vector holds positions, values [kPage, h]. With tiles they
// are bfloat16 in pairs, as the matrix unit multiplies them: keys [h / 2, kPage, 2], values [kPage / 2, h, 2], where h is
// padded to whole tiles.
struct Pages {
  int64_t tiles, head_width, padded, cell, layer, page, values;

  Pages(const Shape& shape, int64_t layers)
      : tiles(shape.packing != kVectors),
        head_width(shape.head_width),
        padded(tiles ? up(head_width, kDepth) * kDepth : head_width),
        cell(kPage * padded * (tiles ? sizeof(bf16) : sizeof(float))),
        layer(2 * shape.kv_heads * cell),
        page(layers * layer),
        values(shape.kv_heads * cell) {}

  // Keys of head k of layer l at the page that holds `position`; values lie `values` bytes behind.
  char* keys(const Row& row, int64_t l, int64_t k, int64_t position) const {
    return row.pool + row.table[position / kPage] * page + l * layer + k * cell;
  }

  void write_key(const Row& row, int64_t l, int64_t k, const float* key) const {
    char* const at = keys(row, l, k, row.position);
    const int64_t place = row.position % kPage;
    if (tiles)
      for (int64_t i = 0; i < head_width; ++i)
        ((bf16*)at)[(i / 2 * kPage + place) * 2 + i % 2] = narrow(key[i]);
    else
      for (int64_t i = 0; i < head_width; ++i) ((float*)at)[i * kPage + place] = key[i];
  }

  void write_value(const Row& row, int64_t l, int64_t k, const float* value) const {
    char* const at = keys(row, l, k, row.position) + values;
    const int64_t place = row.position % kPage;
    if (tiles)
      for (int64_t i = 0; i < head_width; ++i)
        ((bf16*)at)[(place / 2 * padded + i) * 2 + place % 2] = narrow(value[i]);
    else
      std::memcpy((float*)at + place * head_width, value, head_width * sizeof(float));
  }
};

}  // namespace
