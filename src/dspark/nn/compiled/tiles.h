// Products of rows with bfloat16 matrices on the processor's matrix unit (AMX).

#pragma once

#include "vectors.h"

namespace {

constexpr int64_t kGroup = 16;    // outputs of a weight tile, and most rows of an activation tile
constexpr int64_t kDepth = 32;    // inputs of a tile
constexpr int64_t kTile = kGroup * kDepth;
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kLine = 64;     // bytes of a cache line, and of a tile's row

int64_t up(int64_t count, int64_t unit) { return (count + unit - 1) / unit; }

struct alignas(kLine) Line {
  char bytes[kLine];
};

// Where rows lie for the matrix unit: [tiles, depth, height] lines, each a row's inputs at one step of the depth. Tiles
// are equally high and one at least; what is behind the last row is computed with and dropped.
struct RowTiles {
  int64_t rows, depth, tiles, height;

  RowTiles(int64_t rows, int64_t depth)
      : rows(rows), depth(depth), tiles(rows > 0 ? up(rows, kGroup) : 1), height(rows > 0 ? up(rows, tiles) : 1) {}

  int64_t lines() const { return tiles * depth * height; }
  int64_t line(int64_t t, int64_t k) const { return (t / height * depth + k) * height + t % height; }
};

#ifdef DSPARK_TILES

// Products of bfloat16 tiles, summed in float32: activations are rounded to bfloat16 first. A result is the sum over its
// own inputs in one order, whatever rows and outputs are computed with it.

// The processor's matrix unit, with tiles of `height` rows up to the fourth and of kGroup rows behind it. Each thread
// configures its own.
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

// For products: sums in tiles 0 and 1, rows in 2, weights in 5. No more than these four hold anything: a core that
// shares its units with a second thread has few registers to rename them to, and with all eight in use every load waits
// for the products before it, which then take three times as long.
void configure(int height) {
  const TileConfig config(height);
  _tile_loadconfig(&config);
}

// What one tile of rows and one panel of outputs add up to, over one part of the depth after the other.
struct Sums {
  void* first;
  void* second;

  void take(bool begin) const {
    if (begin) {
      _tile_zero(0);
      _tile_zero(1);
    } else {
      _tile_loadd(0, first, kLine);
      _tile_loadd(1, second, kLine);
    }
  }

  void keep() const {
    _tile_stored(0, first, kLine);
    _tile_stored(1, second, kLine);
  }
};

// All tiles of rows with panels of `wide` groups of outputs. `block(g, t, depth, sums)` multiplies tile t with the panel
// at group g over a part of the depth, which stays in the first-level cache for all tiles; `finish(g, t, sums)` takes
// what came out.
template <typename Block, typename Finish>
void each_block(const RowTiles& x, Span groups, int64_t wide, Block block, Finish finish) {
  constexpr int64_t kPart = 12, kSums = 2 * kGroup;
  static thread_local std::vector<Line> memory;
  const int64_t parts = x.tiles == 1 ? 1 : up(x.depth, kPart);
  if (int64_t(memory.size()) < x.tiles * kSums) memory.resize(x.tiles * kSums);
  configure(int(x.height));
  for (int64_t g = groups.first; g < groups.last; g += wide)
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t t = 0; t < x.tiles; ++t) {
        Line* const at = memory.data() + t * kSums;
        const Sums sums{at, at + kGroup};
        block(g, t, Span{part * x.depth / parts, (part + 1) * x.depth / parts}, sums);
        if (part + 1 == parts) finish(g, t, sums);
      }
  _tile_release();
}

// The t-th of all shares of a tile that comes next, out of memory: asked for while the tiles of rows before it are
// multiplied.
void fetch_share(const char* tile, int64_t t, int64_t shares) {
  for (int64_t line = kGroup * t / shares; line < kGroup * (t + 1) / shares; ++line)
    __builtin_prefetch(tile + line * kLine);
}

// One row in bfloat16, padded with zeros to whole tiles.
void round_row(const float* x, int64_t in, const RowTiles& tiles, int64_t t, Line* to) {
  for (int64_t i = 0; i < tiles.depth * kDepth; i += 16) {
    const int64_t left = in - i;
    const __mmask16 inside = left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1;
    const __m256bh half = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(inside, x + i));
    std::memcpy(to[tiles.line(t, i / kDepth)].bytes + i % kDepth * sizeof(bf16), &half, sizeof half);
  }
}

// One tile of rows with two groups of outputs, or one where `second` is null, over a part of the depth; meanwhile comes
// what lies `ahead` of them.
void two_groups(const RowTiles& x, const Line* rows, const bf16* first, const bf16* second, int64_t ahead, int64_t t,
                Span depth, const Sums& sums) {
  sums.take(depth.first == 0);
  for (int64_t k = depth.first; k < depth.last; ++k) {
    fetch_share((const char*)(first + ahead + k * kTile), t, x.tiles);
    _tile_loadd(2, rows + (t * x.depth + k) * x.height, kLine);
    _tile_loadd(5, first + k * kTile, kLine);
    _tile_dpbf16ps(0, 2, 5);
    if (!second) continue;
    fetch_share((const char*)(second + ahead + k * kTile), t, x.tiles);
    _tile_loadd(5, second + k * kTile, kLine);
    _tile_dpbf16ps(1, 2, 5);
  }
  sums.keep();
}

void tiled_product(const RowTiles& x, const Line* rows, const bf16* w, float* y, int64_t y_stride, Span own) {
  if (own.first >= own.last) return;
  const int64_t last = up(own.last, kGroup), group = x.depth * kTile;
  const auto block = [&](int64_t g, int64_t t, Span depth, const Sums& sums) {
    const bf16* const first = w + g * group;
    two_groups(x, rows, first, g + 1 < last ? first + group : nullptr, 2 * group, t, depth, sums);
  };
  const auto finish = [&](int64_t g, int64_t t, const Sums& sums) {
    for (int64_t j = 0; j < 2 && g + j < last; ++j) {
      const float* const from = (const float*)(j ? sums.second : sums.first);
      const int64_t o = (g + j) * kGroup, left = own.last - o;
      const __mmask16 inside = left >= kGroup ? 0xffff : (1u << left) - 1;
      for (int64_t i = 0, r = t * x.height; i < x.height && r < x.rows; ++i, ++r)
        _mm512_mask_storeu_ps(y + r * y_stride + o, inside, _mm512_load_ps(from + i * kGroup));
    }
  };
  each_block(x, {own.first / kGroup, last}, 2, block, finish);
}

// silu(x g^T) * (x u^T) for the groups of outputs that `own` names, w being g above u, `groups` each; rounded to y, rows
// for the next product. These never are floats in memory: rows of many tokens would go there and back.
void gated_product(const RowTiles& x, const Line* rows, const bf16* w, int64_t groups, const RowTiles& out, Line* y,
                   Span own) {
  const int64_t group = x.depth * kTile;
  const auto block = [&](int64_t g, int64_t t, Span depth, const Sums& sums) {
    two_groups(x, rows, w + g * group, w + (groups + g) * group, group, t, depth, sums);
  };
  const auto finish = [&](int64_t g, int64_t t, const Sums& sums) {
    for (int64_t i = 0, r = t * x.height; i < x.height && r < x.rows; ++i, ++r) {
      const Vector gated = silu_times(load((float*)sums.first + i * kGroup), load((float*)sums.second + i * kGroup));
      const __m256bh half = _mm512_cvtneps_pbh((__m512)gated);
      std::memcpy(y[out.line(r, g / 2)].bytes + g % 2 * kLine / 2, &half, sizeof half);
    }
  };
  if (own.first < own.last) each_block(x, own, 1, block, finish);
}

// Ask the system for the matrix unit, once for the process.
bool permitted() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

#else

void round_row(const float*, int64_t, const RowTiles&, int64_t, Line*) {}
void tiled_product(const RowTiles&, const Line*, const bf16*, float*, int64_t, Span) {}
void gated_product(const RowTiles&, const Line*, const bf16*, int64_t, const RowTiles&, Line*, Span) {}
bool permitted() { return false; }

#endif

}  // namespace
