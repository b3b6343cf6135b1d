// The processor's vectors, and products of a few rows with bfloat16 matrices on them.
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

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__)
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

inline Vector silu_times(Vector gate, Vector up) { return gate / (1.0f + exponential(-gate)) * up; }

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

}  // namespace
