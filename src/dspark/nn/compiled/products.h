// Products of a few rows with packed bfloat16 matrices, on vectors or a matrix unit, and the vectors that others use.
//
// A result is a sum over its own inputs in one order, whatever rows and outputs are computed with it.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <immintrin.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define DSPARK_TILES
#endif

namespace {

#ifdef __AVX512F__
constexpr int kLanes = 16;
constexpr int kRows = 8;
constexpr int kTotals = 24;  // of 32 registers; the others hold weights and a row's inputs
#else
constexpr int kLanes = 8;
constexpr int kRows = 6;
constexpr int kTotals = 12;  // of 16 registers
#endif

// Outputs of a register tile of so many rows: few rows need many, for a sum alone waits for its own last addition.
constexpr int outputs_of(int rows) { return kTotals / rows >= 8 ? 8 : kTotals / rows >= 4 ? 4 : 2; }

using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));
using Integers = int32_t __attribute__((vector_size(kLanes * sizeof(float))));
using bf16 = uint16_t;
constexpr int kBlock = 2 * kLanes;  // weights that one load brings

Vector load(const float* at) {
  Vector v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

// Halves of a block. Packed bf16 blocks hold weight i in the low and weight i + kLanes in the high half of word i, so
// that either becomes a float in one operation.
Vector low(const bf16* at) {
  Integers words;
  std::memcpy(&words, at, sizeof words);
  return (Vector)(words << 16);
}

Vector high(const bf16* at) {
  Integers words;
  std::memcpy(&words, at, sizeof words);
  return (Vector)(words & int32_t(0xffff0000));
}

// Loaded once: left alone, the compiler reads x again for every output, and loads become the bottleneck.
Vector in_register(Vector v) {
  asm("" : "+v"(v));
  return v;
}

void store(float* at, Vector v) { std::memcpy(at, &v, sizeof v); }

float widen(bf16 value) {
  const uint32_t bits = uint32_t(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// To the nearest bfloat16, ties to even; finite values only.
bf16 narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bf16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float sum(Vector v) {
#ifdef __AVX512F__
  return _mm512_reduce_add_ps(v);
#else
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#endif
}

// e^x to float32 rounding for x in [-87, 88], beyond which the nearer end stands: 2^n e^r with r in +-ln(2)/2 and a polynomial of degree 6.
inline Vector exponential(Vector x) {
  const Vector zero = {}, least = zero - 87.0f, most = zero + 88.0f;
  x = x < least ? least : (x > most ? most : x);
  const Vector turns = x * 1.44269504f;
  const Integers n = __builtin_convertvector(turns + (turns < zero ? zero - 0.5f : zero + 0.5f), Integers);
  const Vector whole = __builtin_convertvector(n, Vector);
  const Vector r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * (Vector)((n + 127) << 23);
}

// y[r][o] = x[r] . w[o] for R rows and O outputs, summed lane by lane.
template <int R, int O>
void tile(const float* x, int64_t x_stride, const bf16* w, int64_t w_stride, int64_t in, float* y, int64_t y_stride) {
  Vector total[R][O] = {};
  const int64_t whole = in - in % kBlock;
  for (int64_t i = 0; i < whole; i += kBlock) {
    Vector weights[O];
    for (int o = 0; o < O; ++o) {
      __builtin_prefetch(w + (o + O) * w_stride + i);
      weights[o] = low(w + o * w_stride + i);
    }
    for (int r = 0; r < R; ++r) {
      const Vector inputs = in_register(load(x + r * x_stride + i));
      for (int o = 0; o < O; ++o) total[r][o] += inputs * weights[o];
    }
    for (int o = 0; o < O; ++o) weights[o] = high(w + o * w_stride + i);
    for (int r = 0; r < R; ++r) {
      const Vector inputs = in_register(load(x + r * x_stride + i + kLanes));
      for (int o = 0; o < O; ++o) total[r][o] += inputs * weights[o];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int o = 0; o < O; ++o) {
      float value = sum(total[r][o]);
      for (int64_t i = whole; i < in; ++i) value += x[r * x_stride + i] * widen(w[o * w_stride + i]);
      y[r * y_stride + o] = value;
    }
}

// R rows of the outputs that remain from `o` on, O at a time, then fewer.
template <int R, int O>
int64_t outputs(const float* x, int64_t x_stride, const bf16* w, int64_t w_stride, int64_t in, float* y,
                int64_t y_stride, int64_t o, int64_t last) {
  for (; o + O <= last; o += O) tile<R, O>(x, x_stride, w + o * w_stride, w_stride, in, y + o, y_stride);
  if constexpr (O > 1) o = outputs<R, O / 2>(x, x_stride, w, w_stride, in, y, y_stride, o, last);
  return o;
}

struct Span {
  int64_t first, last;
};

// The columns of y [rows, .] = x [rows, in] w^T that `own` names, w [., in], in tiles of nearly equal height. Weights go
// through the cache in panels that stay there for all tiles.
void product(const float* x, int64_t rows, int64_t x_stride, const bf16* w, int64_t w_stride, int64_t in, float* y,
             int64_t y_stride, Span own) {
  constexpr int64_t kPanel = 8;
  for (int64_t o = own.first; o < own.last; o += kPanel) {
    const int64_t last = own.last - o < kPanel ? own.last : o + kPanel;
    for (int64_t tiles = (rows + kRows - 1) / kRows, r = 0; tiles > 0; --tiles) {
      const int64_t height = (rows - r + tiles - 1) / tiles;
      const float* const from = x + r * x_stride;
      float* const to = y + r * y_stride;
      switch (height) {
#define DSPARK_HEIGHT(R) \
  case R: outputs<R, outputs_of(R)>(from, x_stride, w, w_stride, in, to, y_stride, o, last); break;
        DSPARK_HEIGHT(1)
        DSPARK_HEIGHT(2)
        DSPARK_HEIGHT(3)
        DSPARK_HEIGHT(4)
        DSPARK_HEIGHT(5)
        DSPARK_HEIGHT(6)
#if defined(__AVX512F__)
        DSPARK_HEIGHT(7)
        DSPARK_HEIGHT(8)
#endif
#undef DSPARK_HEIGHT
      }
      r += height;
    }
  }
}

constexpr int64_t kGroup = 16;    // outputs of a weight tile, and most rows of an activation tile
constexpr int64_t kDepth = 32;    // inputs of a tile
constexpr int64_t kTile = kGroup * kDepth;

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

// G groups of outputs for the rows of one activation tile: sums in tiles 0 to 3, activations in 4, weights in 5 to 7.
template <int G>
void tile_groups(const bf16* x, int64_t x_bytes, int64_t depth, const bf16* w, float* y, int64_t y_bytes,
                 const int64_t (&full)[4], float* spare) {
  const int64_t group = depth * kTile;
  _tile_zero(0);
  if constexpr (G > 1) _tile_zero(1);
  if constexpr (G > 2) _tile_zero(2);
  if constexpr (G > 3) _tile_zero(3);
  for (int64_t k = 0; k < depth; ++k) {
    const bf16* const at = w + k * kTile;
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
        case 1: tile_groups<1>(from, 2 * padded, depth, weights, to, 4 * y_stride, full, spare); break;
        case 2: tile_groups<2>(from, 2 * padded, depth, weights, to, 4 * y_stride, full, spare); break;
        case 3: tile_groups<3>(from, 2 * padded, depth, weights, to, 4 * y_stride, full, spare); break;
        case 4: tile_groups<4>(from, 2 * padded, depth, weights, to, 4 * y_stride, full, spare); break;
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

// A product with packed weights: of vectors, or of tiles.
void multiply(int64_t tiles, const float* x, int64_t rows, int64_t x_stride, const bf16* w, int64_t in, float* y,
              int64_t y_stride, Span own) {
  if (tiles)
    tiled_product(x, rows, x_stride, w, in, y, y_stride, own);
  else
    product(x, rows, x_stride, w, in, in, y, y_stride, own);
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
