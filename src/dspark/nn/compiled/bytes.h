// Products of rows with int8 matrices on the processor's matrix unit.

#pragma once

#include "tiles.h"

namespace {

constexpr int64_t kByteDepth = 64;  // inputs of a tile of int8

// Bytes of a packed group of outputs: their scales, then tiles of int8.
int64_t byte_group(int64_t in) { return kGroup * sizeof(float) + up(in, kByteDepth) * kTileBytes; }

#ifdef DSPARK_TILES

// A row as two int8: x = scale (coarse + fine / kFine) to 15 bits of the row's largest, so that the weights alone are
// rounded to 8. Sums of int8 products are exact, whatever is computed with them.
constexpr float kFine = 254.0f;

__m512 sixteen(const float* x, int64_t left) {
  return _mm512_maskz_loadu_ps(left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1, x);
}

// Row t in two parts of the same layout; returns its scale, NaN if it is not finite.
float split_row(const float* x, int64_t in, const RowTiles& tiles, int64_t t, Line* coarse, Line* fine) {
  __m512 most = _mm512_setzero_ps(), poison = _mm512_setzero_ps();
  for (int64_t i = 0; i < in; i += 16) {
    const __m512 v = sixteen(x + i, in - i);
    most = _mm512_max_ps(most, _mm512_abs_ps(v));
    poison = _mm512_fmadd_ps(v, _mm512_setzero_ps(), poison);
  }
  const float peak = _mm512_reduce_max_ps(most), scale = peak > 0 ? peak / 127.0f : 1.0f;
  const __m512 inverse = _mm512_set1_ps(1.0f / scale);
  for (int64_t i = 0; i < tiles.depth * kByteDepth; i += 16) {
    const __m512 v = _mm512_mul_ps(sixteen(x + i, in - i), inverse);
    const __m512 whole = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 rest = _mm512_mul_ps(_mm512_sub_ps(v, whole), _mm512_set1_ps(kFine));
    const int64_t line = tiles.line(t, i / kByteDepth), place = i % kByteDepth;
    _mm_storeu_si128((__m128i*)(coarse[line].bytes + place), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(whole)));
    _mm_storeu_si128((__m128i*)(fine[line].bytes + place), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(rest)));
  }
  return scale + _mm512_reduce_add_ps(poison);
}

// Coarse and fine parts of rows, and their scales.
void byte_product(const RowTiles& x, const Line* coarse, const Line* fine, const float* scale, const char* w,
                  int64_t group, float* y, int64_t y_stride, Span own) {
  if (own.first >= own.last) return;
  const auto block = [&](int64_t g, int64_t t, Span depth, const Sums& sums) {
    const char* const weights = w + g * group + kGroup * sizeof(float);
    sums.take(depth.first == 0);
    for (int64_t k = depth.first; k < depth.last; ++k) {
      const int64_t line = (t * x.depth + k) * x.height;
      fetch_share(weights + group + k * kTileBytes, t, x.tiles);
      _tile_loadd(5, weights + k * kTileBytes, kLine);
      _tile_loadd(2, coarse + line, kLine);
      _tile_dpbssd(0, 2, 5);
      _tile_loadd(2, fine + line, kLine);
      _tile_dpbssd(1, 2, 5);
    }
    sums.keep();
  };
  const auto finish = [&](int64_t g, int64_t t, const Sums& sums) {
    const __m512 scales = _mm512_loadu_ps(w + g * group);
    const int64_t o = g * kGroup, left = own.last - o;
    const __mmask16 inside = left >= kGroup ? 0xffff : (1u << left) - 1;
    for (int64_t i = 0, r = t * x.height; i < x.height && r < x.rows; ++i, ++r) {
      const __m512 large = _mm512_cvtepi32_ps(_mm512_load_si512((const Line*)sums.first + i));
      const __m512 small = _mm512_cvtepi32_ps(_mm512_load_si512((const Line*)sums.second + i));
      const __m512 sum = _mm512_fmadd_ps(small, _mm512_set1_ps(1.0f / kFine), large);
      const __m512 factor = _mm512_mul_ps(scales, _mm512_set1_ps(scale[r]));
      _mm512_mask_storeu_ps(y + r * y_stride + o, inside, _mm512_mul_ps(sum, factor));
    }
  };
  each_block(x, {own.first / kGroup, up(own.last, kGroup)}, 1, block, finish);
}

// Of 16 outputs' int8 weights, scales first. Each output is rounded by its own largest.
void pack_bytes(const bf16* w, int64_t out, int64_t in, int64_t g, char* to) {
  float scales[kGroup] = {};
  for (int64_t j = 0; j < kGroup && g * kGroup + j < out; ++j) {
    const bf16* const from = w + (g * kGroup + j) * in;
    float poison = 0.0f;  // NaN where a weight is not finite, and so are then all products
    for (int64_t i = 0; i < in; ++i) {
      scales[j] = std::fmax(scales[j], std::fabs(widen(from[i])) / 127.0f);
      poison += widen(from[i]) * 0.0f;
    }
    scales[j] += poison;
  }
  std::memcpy(to, scales, sizeof scales);
  std::memset(to + sizeof scales, 0, byte_group(in) - sizeof scales);
  for (int64_t j = 0; j < kGroup; ++j) {
    if (!(scales[j] > 0)) continue;  // an output without weights, or behind the last one
    const bf16* const from = w + (g * kGroup + j) * in;
    int8_t* const tiles = (int8_t*)to + sizeof scales;
    for (int64_t i = 0; i < in; ++i)
      tiles[i / kByteDepth * kTileBytes + i % kByteDepth / 4 * 64 + j * 4 + i % 4] =
          int8_t(std::nearbyint(widen(from[i]) / scales[j]));
  }
}

#else

float split_row(const float*, int64_t, const RowTiles&, int64_t, Line*, Line*) { return 0; }
void byte_product(const RowTiles&, const Line*, const Line*, const float*, const char*, int64_t, float*, int64_t, Span) {}
void pack_bytes(const bf16*, int64_t, int64_t, int64_t, char*) {}

#endif

}  // namespace
