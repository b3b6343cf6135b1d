// Products of a few rows with bfloat16 matrices on the processor's matrix unit (AMX).

#pragma once

#include "vectors.h"

namespace {

constexpr int64_t kGroup = 16;    // outputs of a weight tile, and most rows of an activation tile
constexpr int64_t kDepth = 32;    // inputs of a tile
constexpr int64_t kTile = kGroup * kDepth;
constexpr int64_t kTileBytes = 1024;

int64_t up(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }

#ifdef DSPARK_TILES

// Products of bfloat16 tiles, summed in float32: activations are rounded to bfloat16 first. A result is the sum over its
// own inputs in one order, whatever rows and outputs are computed with it.

// The processor's matrix unit: sums of `height` rows in tiles 0 to 3, their factors in 4 to 7. Each thread configures its
// own.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  explicit TileConfig(int height) {
    for (int i = 0; i < 8; ++i) shape(i, i < 5 ? height : kGroup, 64);
  }

  void shape(int tile, int height, int width) {
    rows[tile] = uint8_t(height);
    bytes[tile] = uint16_t(width);
  }
};

// For products: activations in tile 4, weights in 5 to 7.
void configure(int height) {
  const TileConfig config(height);
  _tile_loadconfig(&config);
}

// Ask for a tile's place in each of G groups that come next: the unit's own loads do not run far enough ahead.
template <int G>
void fetch_tiles(const char* at, int64_t group) {
  for (int64_t line = 0; line < kTileBytes; line += 64)
    for (int j = 0; j < G; ++j) __builtin_prefetch(at + j * group + line);
}

// G groups of outputs for the rows of one activation tile: sums in tiles 0 to 3, activations in 4, weights in 5 to 7.
// The first rows find their weights `fresh`, out of memory.
template <int G>
void tile_groups(bool fresh, const bf16* x, int64_t x_bytes, int64_t depth, const bf16* w, float* y, int64_t y_bytes,
                 const int64_t (&full)[4], float* spare) {
  const int64_t group = depth * kTile;
  _tile_zero(0);
  if constexpr (G > 1) _tile_zero(1);
  if constexpr (G > 2) _tile_zero(2);
  if constexpr (G > 3) _tile_zero(3);
  for (int64_t k = 0; k < depth; ++k) {
    const bf16* const at = w + k * kTile;
    if (fresh) fetch_tiles<G>((const char*)(at + G * group), group * sizeof(bf16));
    _tile_loadd(4, x + k * kDepth, x_bytes);
    _tile_loadd(5, at, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (G > 1) {
      _tile_loadd(6, at + group, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (G > 2) {
      _tile_loadd(7, at + 2 * group, 64);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (G > 3) {
      _tile_loadd(5, at + 3 * group, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  float* const to[4] = {full[0] ? y : spare, full[1] ? y + kGroup : spare, full[2] ? y + 2 * kGroup : spare,
                        full[3] ? y + 3 * kGroup : spare};
  _tile_stored(0, to[0], full[0] ? y_bytes : 64);
  if constexpr (G > 1) _tile_stored(1, to[1], full[1] ? y_bytes : 64);
  if constexpr (G > 2) _tile_stored(2, to[2], full[2] ? y_bytes : 64);
  if constexpr (G > 3) _tile_stored(3, to[3], full[3] ? y_bytes : 64);
}

// `count` rows in bfloat16, each padded with zeros to whole tiles.
void round_rows(const float* x, int64_t count, int64_t stride, int64_t in, bf16* to) {
  const int64_t padded = up(in, kDepth) * kDepth;
  for (int64_t r = 0; r < count; ++r)
    for (int64_t i = 0; i < padded; i += 16) {
      const int64_t left = in - i;
      const __mmask16 inside = left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1;
      const __m256bh half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(inside, x + r * stride + i));
      std::memcpy(to + r * padded + i, &half, sizeof half);
    }
}

void tiled_product(const float* x, int64_t rows, int64_t x_stride, const bf16* w, int64_t in, float* y,
                   int64_t y_stride, Span own) {
  static thread_local std::vector<bf16> rounded;
  if (own.first >= own.last) return;
  const int64_t depth = up(in, kDepth), padded = depth * kDepth, last = up(own.last, kGroup);
  if (int64_t(rounded.size()) < rows * padded) rounded.resize(rows * padded);
  round_rows(x, rows, x_stride, in, rounded.data());
  alignas(64) float spare[kGroup * kGroup];
  int configured = 0;
  for (int64_t g = own.first / kGroup; g < last; g += 4) {
    const int64_t groups = last - g < 4 ? last - g : 4;
    int64_t full[4];
    for (int64_t j = 0; j < 4; ++j) full[j] = (g + j + 1) * kGroup <= own.last;
    for (int64_t tiles = up(rows, kGroup), r = 0; tiles > 0; --tiles) {
      const int height = int((rows - r + tiles - 1) / tiles);
      if (height != configured) configure(configured = height);
      const bf16* const from = rounded.data() + r * padded;
      const bf16* const weights = w + g * depth * kTile;
      float* const to = y + r * y_stride + g * kGroup;
      switch (groups) {
        case 1: tile_groups<1>(r == 0, from, 2 * padded, depth, weights, to, 4 * y_stride, full, spare); break;
        case 2: tile_groups<2>(r == 0, from, 2 * padded, depth, weights, to, 4 * y_stride, full, spare); break;
        case 3: tile_groups<3>(r == 0, from, 2 * padded, depth, weights, to, 4 * y_stride, full, spare); break;
        case 4: tile_groups<4>(r == 0, from, 2 * padded, depth, weights, to, 4 * y_stride, full, spare); break;
      }
      const int64_t rest = (g + groups) * kGroup - own.last;  // outputs of the last group that do not exist
      if (rest > 0)
        for (int64_t t = 0; t < height; ++t)
          std::memcpy(to + t * y_stride + (groups - 1) * kGroup, spare + t * kGroup, (kGroup - rest) * sizeof(float));
      r += height;
    }
  }
  _tile_release();
}

// Ask the system for the matrix unit, once for the process.
bool permitted() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

#else

void tiled_product(const float*, int64_t, int64_t, const bf16*, int64_t, float*, int64_t, Span) {}
bool permitted() { return false; }

#endif

}  // namespace
