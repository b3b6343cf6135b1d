// Products of a few rows with int8 matrices on the processor's matrix unit.

#pragma once

#include "tiles.h"

namespace {

constexpr int64_t kByteDepth = 64;  // inputs of a tile of int8

// Bytes of a packed group of outputs: their scales, then tiles of int8.
int64_t byte_group(int64_t in) { return kGroup * sizeof(float) + up(in, kByteDepth) * kTileBytes; }

#ifdef DSPARK_TILES

// Rows as two int8 each: x = scale (coarse + fine / kFine) to 15 bits of the row's largest, so that the weights alone are
// rounded to 8. Sums of int8 products are exact, whatever is computed with them.
constexpr float kFine = 254.0f;

struct ByteRows {
  std::vector<int8_t> coarse, fine;  // [rows, padded]
  std::vector<float> scale;          // NaN for a row that is not finite
  int64_t padded = 0;

  void take(const float* x, int64_t rows, int64_t stride, int64_t in) {
    padded = up(in, kByteDepth) * kByteDepth;
    if (int64_t(coarse.size()) < rows * padded) coarse.resize(rows * padded), fine.resize(rows * padded);
    if (int64_t(scale.size()) < rows) scale.resize(rows);
    for (int64_t r = 0; r < rows; ++r) scale[r] = split(x + r * stride, in, &coarse[r * padded], &fine[r * padded]);
  }

 private:
  static __m512 part(const float* x, int64_t left) {
    return _mm512_maskz_loadu_ps(left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1, x);
  }

  float split(const float* x, int64_t in, int8_t* coarse, int8_t* fine) const {
    __m512 most = _mm512_setzero_ps(), poison = _mm512_setzero_ps();
    for (int64_t i = 0; i < in; i += 16) {
      const __m512 v = part(x + i, in - i);
      most = _mm512_max_ps(most, _mm512_abs_ps(v));
      poison = _mm512_fmadd_ps(v, _mm512_setzero_ps(), poison);
    }
    const float peak = _mm512_reduce_max_ps(most), scale = peak > 0 ? peak / 127.0f : 1.0f;
    const __m512 inverse = _mm512_set1_ps(1.0f / scale);
    for (int64_t i = 0; i < padded; i += 16) {
      const __m512 v = _mm512_mul_ps(part(x + i, in - i), inverse);
      const __m512 whole = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      const __m512 rest = _mm512_mul_ps(_mm512_sub_ps(v, whole), _mm512_set1_ps(kFine));
      _mm_storeu_si128((__m128i*)(coarse + i), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(whole)));
      _mm_storeu_si128((__m128i*)(fine + i), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(rest)));
    }
    return scale + _mm512_reduce_add_ps(poison);
  }
};

// For products of int8: rows in tiles 4 and 5, weights in 6 and 7.
void configure_bytes(int height) {
  TileConfig config(height);
  config.shape(5, height, 64);
  _tile_loadconfig(&config);
}

// Sums of G groups of outputs for `height` rows, [., G, kGroup]: coarse in tiles 0 and 2, fine in 1 and 3, rows in 4 and
// 5, weights in 6 and 7.
template <int G>
void byte_groups(bool fresh, const int8_t* coarse, const int8_t* fine, int64_t padded, const char* w, int64_t group,
                 int32_t (&sums)[4][kGroup * kGroup]) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (G > 1) _tile_zero(2);
  if constexpr (G > 1) _tile_zero(3);
  for (int64_t k = 0; k < padded / kByteDepth; ++k) {
    if (fresh) fetch_tiles<G>(w + G * group + k * kTileBytes, group);
    _tile_loadd(4, coarse + k * kByteDepth, padded);
    _tile_loadd(5, fine + k * kByteDepth, padded);
    _tile_loadd(6, w + k * kTileBytes, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 5, 6);
    if constexpr (G > 1) {
      _tile_loadd(7, w + group + k * kTileBytes, 64);
      _tile_dpbssd(2, 4, 7);
      _tile_dpbssd(3, 5, 7);
    }
  }
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  if constexpr (G > 1) _tile_stored(2, sums[2], 64);
  if constexpr (G > 1) _tile_stored(3, sums[3], 64);
}

void byte_product(const float* x, int64_t rows, int64_t x_stride, const char* w, int64_t in, float* y, int64_t y_stride,
                  Span own) {
  static thread_local ByteRows taken;
  if (own.first >= own.last) return;
  taken.take(x, rows, x_stride, in);
  const int64_t group = byte_group(in), padded = taken.padded, last = up(own.last, kGroup);
  alignas(64) int32_t sums[4][kGroup * kGroup];
  int configured = 0;
  for (int64_t g = own.first / kGroup; g < last; g += 2) {
    const int64_t groups = last - g < 2 ? 1 : 2;
    const char* const from = w + g * group;
    for (int64_t tiles = up(rows, kGroup), r = 0; tiles > 0; --tiles) {
      const int height = int(up(rows - r, tiles));
      if (height != configured) configure_bytes(configured = height);
      const int8_t *const coarse = &taken.coarse[r * padded], *const fine = &taken.fine[r * padded];
      if (groups == 2)
        byte_groups<2>(r == 0, coarse, fine, padded, from + kGroup * sizeof(float), group, sums);
      else
        byte_groups<1>(r == 0, coarse, fine, padded, from + kGroup * sizeof(float), group, sums);
      for (int64_t j = 0; j < groups; ++j) {
        const __m512 scales = _mm512_loadu_ps(from + j * group);
        const int64_t o = (g + j) * kGroup, left = own.last - o;
        const __mmask16 inside = left >= kGroup ? 0xffff : (1u << left) - 1;
        for (int64_t t = 0; t < height; ++t) {
          const __m512 large = _mm512_cvtepi32_ps(_mm512_load_si512(sums[2 * j] + t * kGroup));
          const __m512 small = _mm512_cvtepi32_ps(_mm512_load_si512(sums[2 * j + 1] + t * kGroup));
          const __m512 sum = _mm512_fmadd_ps(small, _mm512_set1_ps(1.0f / kFine), large);
          const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(taken.scale[r + t]));
          _mm512_mask_storeu_ps(y + (r + t) * y_stride + o, inside, _mm512_mul_ps(sum, scale));
        }
      }
      r += height;
    }
  }
  _tile_release();
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

void byte_product(const float*, int64_t, int64_t, const char*, int64_t, float*, int64_t, Span) {}
void pack_bytes(const bf16*, int64_t, int64_t, int64_t, char*) {}

#endif

}  // namespace
