// Attention of rows on the pages of their requests. Rows that follow each other in a request meet a page together, and
// each has the bits that it has alone: what others see and it does not gets the weight 0.

#pragma once

#include "pages.h"

namespace {

constexpr int64_t kQueries = 16;  // most query rows that meet a page together

// What the query rows of one attention see of one request, by page.
struct Sight {
  const Pages& pages;
  const Row& row;
  int64_t layer, head;
  int64_t first, last;  // the first page that any row sees, and the one behind the last

  int64_t count() const { return (last - first) * kPage; }
  const char* keys(int64_t page) const { return pages.keys(row, layer, head, (first + page) * kPage); }
  const char* values(int64_t page) const { return keys(page) + pages.values; }
};

constexpr int kParts = kPage / kLanes;  // vectors of a page
constexpr int kHigh = kLanes == 16 ? 8 : 4;  // most query rows that share the loads of a vector of keys
constexpr int kMixed = kLanes == 16 ? 4 : 2;  // and of values

// Scores of R queries on V vectors of positions: each is a sum over the width of a head, in order.
template <int R, int V>
void score(const float* queries, int64_t q_stride, const float* const (&keys)[V], int64_t width, float* scores,
           int64_t stride) {
  const Vector zero = {};
  Vector total[R][V] = {};
  for (int64_t i = 0; i < width; ++i) {
    Vector key[V];
    for (int v = 0; v < V; ++v) key[v] = load(keys[v] + i * kPage);
    for (int r = 0; r < R; ++r) {
      const Vector query = in_register(zero + queries[r * q_stride + i]);
      for (int v = 0; v < V; ++v) total[r][v] += query * key[v];
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(scores + r * stride + v * kLanes, total[r][v]);
}

// Of the vectors of positions from `at` on, V at a time, then fewer.
template <int R, int V>
int64_t score_pages(const Sight& sight, const float* queries, int64_t q_stride, float* scores, int64_t stride,
                    int64_t at) {
  for (; at + V <= (sight.last - sight.first) * kParts; at += V) {
    const float* keys[V];
    for (int v = 0; v < V; ++v) keys[v] = (const float*)sight.keys((at + v) / kParts) + (at + v) % kParts * kLanes;
    score<R, V>(queries, q_stride, keys, sight.pages.head_width, scores + at * kLanes, stride);
  }
  if constexpr (V > 1) at = score_pages<R, V / 2>(sight, queries, q_stride, scores, stride, at);
  return at;
}

void score_all(const Sight& sight, const float* queries, int64_t q_stride, int64_t rows, float* scores,
               int64_t stride) {
  for (int64_t tiles = up(rows, kHigh), r = 0; tiles > 0; --tiles) {
    const int64_t height = up(rows - r, tiles);
    const float* const from = queries + r * q_stride;
    float* const to = scores + r * stride;
    switch (height) {
#define DSPARK_HEIGHT(R) \
  case R: score_pages<R, kLanes == 16 && R <= 4 ? 4 : 2>(sight, from, q_stride, to, stride, 0); break;
      DSPARK_HEIGHT(1)
      DSPARK_HEIGHT(2)
      DSPARK_HEIGHT(3)
      DSPARK_HEIGHT(4)
#if defined(__AVX512F__)
      DSPARK_HEIGHT(5)
      DSPARK_HEIGHT(6)
      DSPARK_HEIGHT(7)
      DSPARK_HEIGHT(8)
#endif
#undef DSPARK_HEIGHT
    }
    r += height;
  }
}

// Scores of a row to weights, in place; returns their sum. Of `count` scores it sees those from `first` to `last`, the
// others get the weight 0. Sums run from the page of `first` on, so that a row's sum never depends on what others see.
float soften(float* scores, int64_t first, int64_t last, int64_t count) {
  const int64_t begin = first / kPage * kPage, end = up(last, kPage) * kPage;
  for (int64_t s = begin; s < first; ++s) scores[s] = -INFINITY;
  for (int64_t s = last; s < end; ++s) scores[s] = -INFINITY;
  Vector most = load(scores + begin), total = {};
  for (int64_t s = begin + kLanes; s < end; s += kLanes) {
    const Vector here = load(scores + s);
    most = here > most ? here : most;
  }
  float peak = most[0];
  for (int lane = 1; lane < kLanes; ++lane) peak = most[lane] > peak ? most[lane] : peak;
  for (int64_t s = begin; s < end; s += kLanes) {
    const Vector weights = exponential(load(scores + s) - peak);
    store(scores + s, weights);
    total += weights;  // of what is not seen, too: e^-87, which vanishes beside the peak's 1
  }
  std::memset(scores, 0, first * sizeof(float));
  std::memset(scores + last, 0, (count - last) * sizeof(float));
  return sum(total);
}

// Values under the weights of R rows, W vectors of columns at a time from column `i` on, then fewer.
template <int R, int W>
int64_t mix_columns(const Sight& sight, const float* weights, int64_t stride, float* y, int64_t y_stride, int64_t i) {
  const int64_t width = sight.pages.head_width;
  for (; i + W * kLanes <= width; i += W * kLanes) {
    Vector total[R][W] = {};
    for (int64_t page = 0; page < sight.last - sight.first; ++page) {
      const float* const values = (const float*)sight.values(page) + i;
      for (int64_t s = 0; s < kPage; ++s) {
        Vector value[W];
        for (int w = 0; w < W; ++w) value[w] = load(values + s * width + w * kLanes);
        for (int r = 0; r < R; ++r)
          for (int w = 0; w < W; ++w) total[r][w] += value[w] * weights[r * stride + page * kPage + s];
      }
    }
    for (int r = 0; r < R; ++r)
      for (int w = 0; w < W; ++w) store(y + r * y_stride + i + w * kLanes, total[r][w]);
  }
  if constexpr (W > 1) i = mix_columns<R, W / 2>(sight, weights, stride, y, y_stride, i);
  return i;
}

template <int R>
void mix(const Sight& sight, const float* weights, int64_t stride, float* y, int64_t y_stride) {
  const int64_t width = sight.pages.head_width;
  for (int64_t i = mix_columns<R, 4>(sight, weights, stride, y, y_stride, 0); i < width; ++i)
    for (int r = 0; r < R; ++r) {
      float total = 0;
      for (int64_t page = 0; page < sight.last - sight.first; ++page) {
        const float* const values = (const float*)sight.values(page) + i;
        for (int64_t s = 0; s < kPage; ++s) total += values[s * width] * weights[r * stride + page * kPage + s];
      }
      y[r * y_stride + i] = total;
    }
}

void mix_all(const Sight& sight, const float* weights, int64_t stride, int64_t rows, float* y, int64_t y_stride) {
  for (int64_t tiles = up(rows, kMixed), r = 0; tiles > 0; --tiles) {
    const int64_t height = up(rows - r, tiles);
    const float* const from = weights + r * stride;
    float* const to = y + r * y_stride;
    switch (height) {
      case 1: mix<1>(sight, from, stride, to, y_stride); break;
      case 2: mix<2>(sight, from, stride, to, y_stride); break;
#if defined(__AVX512F__)
      case 3: mix<3>(sight, from, stride, to, y_stride); break;
      case 4: mix<4>(sight, from, stride, to, y_stride); break;
#endif
    }
    r += height;
  }
}

#ifdef DSPARK_TILES

// For attention to `height` queries: first their tiles and those of keys, 2 and 5 as for other products, then the weights
// of a page in 2 and its values in 5.
void configure_weights(int height) {
  TileConfig config(height);
  config.shape(2, height, kPage * sizeof(bf16));
  config.shape(5, kPage / 2, 64);
  _tile_loadconfig(&config);
}

// Scores of the queries of one tile, bfloat16 [., padded], on P pages from `page` on.
template <int P>
void tile_score(const Sight& sight, const bf16* queries, int64_t page, float* scores, int64_t stride) {
  const int64_t padded = sight.pages.padded;
  const bf16* keys[P];
  for (int p = 0; p < P; ++p) keys[p] = (const bf16*)sight.keys(page + p);
  _tile_zero(0);
  if constexpr (P > 1) _tile_zero(1);
  for (int64_t i = 0; i < padded; i += kDepth) {
    _tile_loadd(2, queries + i, padded * sizeof(bf16));
    _tile_loadd(5, keys[0] + i * kPage, 64);
    _tile_dpbf16ps(0, 2, 5);
    if constexpr (P > 1) {
      _tile_loadd(5, keys[1] + i * kPage, 64);
      _tile_dpbf16ps(1, 2, 5);
    }
  }
  float* const to = scores + page * kPage;
  const int64_t bytes = stride * sizeof(float);
  _tile_stored(0, to, bytes);
  if constexpr (P > 1) _tile_stored(1, to + kPage, bytes);
}

// Columns i ... i + 32 of the values under the weights, bfloat16 [., stride].
void tile_mix(const Sight& sight, const bf16* weights, int64_t stride, int64_t i, float* y) {
  const int64_t padded = sight.pages.padded, bytes = 2 * padded * sizeof(bf16);
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t page = 0; page < sight.last - sight.first; ++page) {
    const bf16* const values = (const bf16*)sight.values(page) + 2 * i;
    _tile_loadd(2, weights + page * kPage, stride * sizeof(bf16));
    _tile_loadd(5, values, bytes);
    _tile_dpbf16ps(0, 2, 5);
    _tile_loadd(5, values + 2 * kGroup, bytes);
    _tile_dpbf16ps(1, 2, 5);
  }
  _tile_stored(0, y + i, padded * sizeof(float));
  _tile_stored(1, y + i + kGroup, padded * sizeof(float));
}

void tile_score_all(const Sight& sight, const bf16* queries, int64_t rows, float* scores, int64_t stride) {
  const int64_t pages = sight.last - sight.first;
  configure(int(rows));
  int64_t page = 0;
  for (; page + 2 <= pages; page += 2) tile_score<2>(sight, queries, page, scores, stride);
  if (page < pages) tile_score<1>(sight, queries, page, scores, stride);
}

void tile_mix_all(const Sight& sight, const bf16* weights, int64_t stride, int64_t rows, float* y) {
  configure_weights(int(rows));
  for (int64_t i = 0; i < sight.pages.padded; i += 2 * kGroup) tile_mix(sight, weights, stride, i, y);
  _tile_release();
}

// `count` floats to bfloat16, where they lie.
void narrow_row(float* row, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    const __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(row + i));
    std::memcpy((bf16*)row + i, &half, sizeof half);
  }
}

#else

void tile_score_all(const Sight&, const bf16*, int64_t, float*, int64_t) {}
void tile_mix_all(const Sight&, const bf16*, int64_t, int64_t, float*) {}
void narrow_row(float*, int64_t) {}

#endif

// Rows that follow each other in one request, few enough for their queries to meet a page together.
std::vector<Span> query_tiles(const Row* place, int64_t rows, int64_t group) {
  const int64_t most = group < kQueries ? kQueries / group : 1;
  std::vector<Span> tiles;
  for (int64_t first = 0, last; first < rows; first = last) {
    const auto follows = [&](int64_t t) {
      return place[t].table == place[first].table && place[t].pool == place[first].pool &&
             place[t].position == place[t - 1].position + 1;
    };
    for (last = first + 1; last < rows && follows(last);) ++last;
    for (int64_t count = up(last - first, most), t = first; count > 0; --count) {
      const int64_t height = up(last - t, count);
      tiles.push_back({t, t + height});
      t += height;
    }
  }
  return tiles;
}

// One head's attention of the rows of one query tile.
struct Attention {
  const Shape& shape;
  const Pages& pages;
  const Row* place;
  int64_t window, stride, width;  // stride of scores, width of queries
  float* scores;                  // [kQueries, stride]
  float* queries;                 // [kQueries, width], and what becomes of them

  int64_t first_seen(int64_t t) const {
    return window && place[t].visible > window ? place[t].visible - window : 0;
  }

  void run(int64_t layer, int64_t head, Span tile, const float* projected, float* attended) const {
    const int64_t group = shape.heads / shape.kv_heads, rows = (tile.last - tile.first) * group;
    int64_t last = 0;
    for (int64_t t = tile.first; t < tile.last; ++t) last = place[t].visible > last ? place[t].visible : last;
    const Sight sight{pages, place[tile.first], layer, head, first_seen(tile.first) / kPage, up(last, kPage)};
    for (int64_t r = 0; r < rows; r += kQueries)
      part(sight, tile.first * group + r, rows - r < kQueries ? rows - r : kQueries, projected, attended);
  }

 private:
  // `rows` query rows from `from` on, of all rows times the queries of a group.
  void part(const Sight& sight, int64_t from, int64_t rows, const float* projected, float* attended) const {
    const int64_t h = shape.head_width, group = shape.heads / shape.kv_heads;
    const int64_t all_heads = shape.heads + 2 * shape.kv_heads, base = sight.first * kPage;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = (from + r) / group, g = (from + r) % group;
      put_query(projected + (t * all_heads + sight.head * group + g) * h, r);
    }
    if (pages.tiles)
      tile_score_all(sight, (const bf16*)queries, rows, scores, stride);
    else
      score_all(sight, queries, width, rows, scores, stride);
    float scale[kQueries];
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = (from + r) / group;
      float* const row = scores + r * stride;
      scale[r] = 1.0f / soften(row, first_seen(t) - base, place[t].visible - base, sight.count());
      if (pages.tiles) narrow_row(row, sight.count());
    }
    if (pages.tiles)
      tile_mix_all(sight, (const bf16*)scores, 2 * stride, rows, queries);
    else
      mix_all(sight, scores, stride, rows, queries, width);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = (from + r) / group, g = (from + r) % group;
      float* const to = attended + (t * shape.heads + sight.head * group + g) * h;
      for (int64_t i = 0; i < h; ++i) to[i] = queries[r * width + i] * scale[r];
    }
  }

  void put_query(const float* query, int64_t r) const {
    const int64_t h = shape.head_width;
    if (!pages.tiles) {
      std::memcpy(queries + r * width, query, h * sizeof(float));
      return;
    }
    bf16* const to = (bf16*)queries + r * pages.padded;
    for (int64_t i = 0; i < h; ++i) to[i] = narrow(query[i]);
    for (int64_t i = h; i < pages.padded; ++i) to[i] = 0;
  }
};

}  // namespace
