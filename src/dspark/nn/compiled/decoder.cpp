// A few rows through a stack of decoder layers: one call, one parallel region, every weight read once from memory.
//
// The torch layers are the oracle. A row's result has the same bits whatever other rows are computed with it: each
// sum runs over its own index in a fixed order, so decoding one token or verifying several gives identical logits.
//
// T rows, d width, H query heads, K key/value heads, h head width, G = H / K, f inner width of the MLP.

#include <algorithm>
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

void rms_norm(const float* x, const float* weight, float eps, int64_t width, float* y) {
  Vector squares = {};
  const int64_t whole = width - width % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) squares += load(x + i) * load(x + i);
  float total = sum(squares);
  for (int64_t i = whole; i < width; ++i) total += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(total / float(width) + eps);
  for (int64_t i = 0; i < width; ++i) y[i] = x[i] * scale * weight[i];
}

void rotate(float* head, const float* cos, const float* sin, int64_t width) {
  const int64_t half = width / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] + b * sin[i];
    head[i + half] = b * cos[i + half] + a * sin[i + half];
  }
}

float largest(const float* values, int64_t count) {
  const Vector zero = {};
  Vector tops = zero - INFINITY;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vector v = load(values + i);
    tops = v > tops ? v : tops;
  }
  float top = -INFINITY;
  for (int lane = 0; lane < kLanes; ++lane) top = tops[lane] > top ? tops[lane] : top;
  for (; i < count; ++i) top = values[i] > top ? values[i] : top;
  return top;
}

// 0, or NaN if one of `count` values is not finite.
float spoilt(const float* values, int64_t count) {
  Vector poison = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) poison += load(values + i) * 0.0f;
  float total = sum(poison);
  for (; i < count; ++i) total += values[i] * 0.0f;
  return total;
}

// Adds bias, unless it is null, to the columns of y that `own` names.
void add_bias(float* y, const float* bias, int64_t rows, int64_t stride, Span own) {
  if (!bias) return;
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = own.first; i < own.last; ++i) y[t * stride + i] += bias[i];
}

// x + y in the columns that `own` names, kept in x.
void add(float* x, const float* y, int64_t rows, int64_t width, Span own) {
  for (int64_t t = 0; t < rows; ++t)
    for (int64_t i = own.first; i < own.last; ++i) x[t * width + i] += y[t * width + i];
}

Vector silu_times(Vector gate, Vector up) { return gate / (1.0f + exponential(-gate)) * up; }

// silu(gate) * up, kept in gate. The tail is padded to a whole vector, so that a value never depends on its place.
void gate(float* gate, const float* up, Span own) {
  int64_t i = own.first;
  for (; i + kLanes <= own.last; i += kLanes) store(gate + i, silu_times(load(gate + i), load(up + i)));
  if (i == own.last) return;
  float g[kLanes] = {}, u[kLanes] = {};
  std::memcpy(g, gate + i, (own.last - i) * sizeof(float));
  std::memcpy(u, up + i, (own.last - i) * sizeof(float));
  store(g, silu_times(load(g), load(u)));
  std::memcpy(gate + i, g, (own.last - i) * sizeof(float));
}

}  // namespace

extern "C" {

struct Shape {
  int64_t width, inner, heads, kv_heads, head_width;
  int64_t tiles;  // whether weights are packed in tiles
  float eps;
};

struct Layer {
  const float* input_norm;
  const bf16* qkv;          // [(H + 2K) h, d]
  const float* qkv_bias;    // biases may be null, and so may query_norm together with key_norm
  const float* query_norm;
  const float* key_norm;
  const bf16* output;       // [d, H h]
  const float* output_bias;
  const float* mlp_norm;
  const bf16* gate_up;      // [2 f, d]
  const float* gate_up_bias;
  const bf16* down;         // [d, f]
  const float* down_bias;
  int64_t window;           // positions that a token sees, itself included; 0: all
};

// Where a row stands: at `position` of the request whose pages `table` lists in order, seeing its first `visible`
// positions.
struct Row {
  char* pool;
  const int32_t* table;
  int64_t position, visible;
};

}

namespace {

constexpr int64_t kPage = 16;    // positions of a page
constexpr int64_t kQueries = 16;  // most query rows that meet a page together

// Pages [., L, 2K] of cells, one for the keys or the values of a head at kPage positions.
//
// Without tiles, cells are float32, keys [h, kPage] so that a vector holds positions, values [kPage, h]. With tiles they
// are bfloat16 in pairs, as the matrix unit multiplies them: keys [h / 2, kPage, 2], values [kPage / 2, h, 2], where h is
// padded to whole tiles.
struct Pages {
  int64_t tiles, head_width, padded, cell, layer, page, values;

  Pages(const Shape& shape, int64_t layers)
      : tiles(shape.tiles),
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
      for (int64_t i = 0; i < head_width; ++i) ((bf16*)at)[(i / 2 * kPage + place) * 2 + i % 2] = narrow(key[i]);
    else
      for (int64_t i = 0; i < head_width; ++i) ((float*)at)[i * kPage + place] = key[i];
  }

  void write_value(const Row& row, int64_t l, int64_t k, const float* value) const {
    char* const at = keys(row, l, k, row.position) + values;
    const int64_t place = row.position % kPage;
    if (tiles)
      for (int64_t i = 0; i < head_width; ++i) ((bf16*)at)[(place / 2 * padded + i) * 2 + place % 2] = narrow(value[i]);
    else
      std::memcpy((float*)at + place * head_width, value, head_width * sizeof(float));
  }
};

// Lengths of the parts of the scratch, each of whole cache lines: a row that straddles two is read twice.
struct Scratch {
  int64_t projected, attended, inner, added, scores, queries;

  Scratch(const Shape& shape, int64_t rows, int64_t visible)
      : projected(whole_lines(rows * (shape.heads + 2 * shape.kv_heads) * shape.head_width)),
        attended(whole_lines(rows * shape.heads * shape.head_width)),
        inner(whole_lines(rows * 2 * shape.inner)),
        added(whole_lines(rows * shape.width)),
        scores(up(visible, kPage) * kPage + kPage),  // of a row; a line more, lest rows compete for the same cache lines
        queries(up(shape.head_width, kDepth) * kDepth) {}

  int64_t own() const { return added + kQueries * (scores + queries); }
  int64_t size(int threads) const { return projected + attended + inner + added + threads * own(); }
  static int64_t whole_lines(int64_t floats) { return (floats + 15) / 16 * 16; }
};

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

// For attention: queries in tile 4 and a page of keys in 5, weights of a page in 6 and its values in 7.
void configure_attention(int height) {
  TileConfig config(height);
  config.shape(6, height, kPage * sizeof(bf16));
  config.shape(7, kPage / 2, 64);
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
  if constexpr (P > 2) _tile_zero(2);
  if constexpr (P > 3) _tile_zero(3);
  for (int64_t i = 0; i < padded; i += kDepth) {
    _tile_loadd(4, queries + i, padded * sizeof(bf16));
    _tile_loadd(5, keys[0] + i * kPage, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (P > 1) {
      _tile_loadd(5, keys[1] + i * kPage, 64);
      _tile_dpbf16ps(1, 4, 5);
    }
    if constexpr (P > 2) {
      _tile_loadd(5, keys[2] + i * kPage, 64);
      _tile_dpbf16ps(2, 4, 5);
    }
    if constexpr (P > 3) {
      _tile_loadd(5, keys[3] + i * kPage, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  float* const to = scores + page * kPage;
  const int64_t bytes = stride * sizeof(float);
  _tile_stored(0, to, bytes);
  if constexpr (P > 1) _tile_stored(1, to + kPage, bytes);
  if constexpr (P > 2) _tile_stored(2, to + 2 * kPage, bytes);
  if constexpr (P > 3) _tile_stored(3, to + 3 * kPage, bytes);
}

// Columns i ... i + 16 C of the values under the weights, bfloat16 [., stride].
template <int C>
void tile_mix(const Sight& sight, const bf16* weights, int64_t stride, int64_t i, float* y) {
  const int64_t padded = sight.pages.padded, bytes = 2 * padded * sizeof(bf16);
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (C > 2) _tile_zero(2);
  if constexpr (C > 2) _tile_zero(3);
  for (int64_t page = 0; page < sight.last - sight.first; ++page) {
    const bf16* const values = (const bf16*)sight.values(page) + 2 * i;
    _tile_loadd(6, weights + page * kPage, stride * sizeof(bf16));
    _tile_loadd(7, values, bytes);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(7, values + 2 * kGroup, bytes);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (C > 2) {
      _tile_loadd(7, values + 4 * kGroup, bytes);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, values + 6 * kGroup, bytes);
      _tile_dpbf16ps(3, 6, 7);
    }
  }
  _tile_stored(0, y + i, padded * sizeof(float));
  _tile_stored(1, y + i + kGroup, padded * sizeof(float));
  if constexpr (C > 2) {
    _tile_stored(2, y + i + 2 * kGroup, padded * sizeof(float));
    _tile_stored(3, y + i + 3 * kGroup, padded * sizeof(float));
  }
}

void tile_score_all(const Sight& sight, const bf16* queries, float* scores, int64_t stride) {
  const int64_t pages = sight.last - sight.first;
  int64_t page = 0;
  for (; page + 4 <= pages; page += 4) tile_score<4>(sight, queries, page, scores, stride);
  switch (pages - page) {
    case 1: tile_score<1>(sight, queries, page, scores, stride); break;
    case 2: tile_score<2>(sight, queries, page, scores, stride); break;
    case 3: tile_score<3>(sight, queries, page, scores, stride); break;
  }
}

void tile_mix_all(const Sight& sight, const bf16* weights, int64_t stride, float* y) {
  int64_t i = 0;
  for (; i + 4 * kGroup <= sight.pages.padded; i += 4 * kGroup) tile_mix<4>(sight, weights, stride, i, y);
  if (i < sight.pages.padded) tile_mix<2>(sight, weights, stride, i, y);
}

// `count` floats to bfloat16, where they lie.
void narrow_row(float* row, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    const __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(row + i));
    std::memcpy((bf16*)row + i, &half, sizeof half);
  }
}

#else

void configure_attention(int) {}
void tile_score_all(const Sight&, const bf16*, float*, int64_t) {}
void tile_mix_all(const Sight&, const bf16*, int64_t, float*) {}
void narrow_row(float*, int64_t) {}
void _tile_release() {}

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
    if (pages.tiles) {
      configure_attention(int(rows));
      tile_score_all(sight, (const bf16*)queries, scores, stride);
    } else {
      score_all(sight, queries, width, rows, scores, stride);
    }
    float scale[kQueries];
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t t = (from + r) / group;
      float* const row = scores + r * stride;
      scale[r] = 1.0f / soften(row, first_seen(t) - base, place[t].visible - base, sight.count());
      if (pages.tiles) narrow_row(row, sight.count());
    }
    if (pages.tiles) {
      tile_mix_all(sight, (const bf16*)scores, 2 * stride, queries);
      _tile_release();
    } else {
      mix_all(sight, scores, stride, rows, queries, width);
    }
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

extern "C" {

// Whether this processor and system multiply tiles; asks for them.
int dspark_tiles() {
  static const bool can = permitted();
  return can;
}

// Words of a packed matrix [out, in].
int64_t dspark_packed_size(int64_t out, int64_t in, int64_t tiles) {
  return tiles ? up(out, kGroup) * up(in, kDepth) * kTile : out * in;
}

// Copy w [out, in]. For vectors so that `low` and `high` find their halves; what does not fill a block stays as it is.
// For tiles, each holding kGroup outputs and kDepth inputs, pairs of inputs side by side; groups of outputs outermost.
void dspark_pack(const bf16* w, int64_t out, int64_t in, bf16* packed, int64_t tiles, int threads) {
  const int64_t whole = in - in % kBlock, depth = up(in, kDepth);
  if (tiles) {
#pragma omp parallel for num_threads(threads)
    for (int64_t g = 0; g < up(out, kGroup); ++g)
      for (int64_t k = 0; k < depth; ++k)
        for (int64_t at = 0; at < kTile; ++at) {
          const int64_t o = g * kGroup + at / 2 % kGroup, i = k * kDepth + at / (2 * kGroup) * 2 + at % 2;
          packed[(g * depth + k) * kTile + at] = o < out && i < in ? w[o * in + i] : 0;
        }
    return;
  }
#pragma omp parallel for num_threads(threads)
  for (int64_t o = 0; o < out; ++o) {
    const bf16* const from = w + o * in;
    bf16* const to = packed + o * in;
    for (int64_t i = 0; i < whole; i += kBlock)
      for (int lane = 0; lane < kLanes; ++lane) {
        to[i + 2 * lane] = from[i + lane];
        to[i + 2 * lane + 1] = from[i + lane + kLanes];
      }
    std::memcpy(to + whole, from + whole, (in - whole) * sizeof(bf16));
  }
}

// y [rows, out] = x [rows, in] w^T + bias; bias may be null.
void dspark_linear(const float* x, int64_t rows, int64_t in, const bf16* w, const float* bias, int64_t out, float* y,
                   int64_t tiles, int threads) {
#pragma omp parallel num_threads(threads)
  {
    const Span own = group_share(out);
    multiply(tiles, x, rows, in, w, in, y, out, own);
    add_bias(y, bias, rows, out, own);
  }
}

// Of the law behind each row of logits [rows, width]: log-odds of its largest probability and entropy in nats.
void dspark_law_signals(const float* logits, int64_t rows, int64_t width, float* peak, float* entropy, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t t = 0; t < rows; ++t) {
    const float* const row = logits + t * width;
    const float top = largest(row, width);
    const Vector zero = {}, least = zero - 87.0f;
    Vector others = zero, products = zero;  // without the largest, beside which small weights would vanish
    float first = 0.0f, tail[kLanes];
    for (int64_t i = 0; i < width; i += kLanes) {
      const int64_t count = width - i < kLanes ? width - i : kLanes;
      if (count < kLanes) {
        for (int64_t j = 0; j < kLanes; ++j) tail[j] = j < count ? row[i + j] : -INFINITY;
      }
      const Vector v = load(count < kLanes ? tail : row + i) - top;
      const Vector shifted = v < least ? least : v;
      const Vector weights = v < least ? zero : exponential(shifted);
      const Vector kept = v == zero ? zero : weights;
      others += kept;
      products += kept * shifted;
      first += sum(v == zero ? zero + 1.0f : zero);
    }
    const float rest = sum(others) + (first - 1.0f), total = 1.0f + rest;
    peak[t] = -std::log(rest > 1e-7f ? rest : 1e-7f);
    entropy[t] = std::log(total) - sum(products) / total;
  }
}

// Of each row of x [rows, in] the largest of its products with w [out, in], and the first output that has it, without
// keeping the products. A row with products that are not finite has NaN.
void dspark_best(const float* x, int64_t rows, int64_t in, const bf16* w, int64_t out, float* best, int64_t* place,
                 int64_t tiles, int threads) {
  constexpr int64_t kColumns = 1024;  // products that are looked at while they are in the second-level cache
  std::vector<float> tops(threads * rows, -INFINITY);
  std::vector<int64_t> places(threads * rows, 0);
  int team = 1;
#pragma omp parallel num_threads(threads)
  {
    if (omp_get_thread_num() == 0) team = omp_get_num_threads();
    std::vector<float> products(rows * kColumns);
    float* const own_tops = tops.data() + omp_get_thread_num() * rows;
    int64_t* const own_places = places.data() + omp_get_thread_num() * rows;
    const Span own = group_share(out);
    for (int64_t o = own.first; o < own.last; o += kColumns) {
      const int64_t count = own.last - o < kColumns ? own.last - o : kColumns;
      const bf16* const from = w + (tiles ? o * up(in, kDepth) * kDepth : o * in);
      multiply(tiles, x, rows, in, from, in, products.data(), kColumns, {0, count});
      for (int64_t t = 0; t < rows; ++t) {
        const float* const row = products.data() + t * kColumns;
        const float top = largest(row, count) + spoilt(row, count);
        if (top > own_tops[t] || top != top) {
          own_tops[t] = top;
          own_places[t] = o + std::find(row, row + count, top) - row;
        }
      }
    }
  }
  for (int64_t t = 0; t < rows; ++t) {
    best[t] = tops[t], place[t] = places[t];
    for (int64_t rank = 1; rank < team; ++rank)
      if (const float top = tops[rank * rows + t]; top > best[t] || top != top)
        best[t] = top, place[t] = places[rank * rows + t];
  }
}

// Floats of scratch that `dspark_layers` needs for rows tokens that see up to `visible` positions.
int64_t dspark_scratch(const Shape* shape, int64_t rows, int64_t visible, int threads) {
  return Scratch(*shape, rows, visible).size(threads);
}

// x [rows, d] through all layers, in place, each row where `place` says, its keys and values written there. Rows that a
// row sees are among them or came before.
// cos, sin [positions, h] as Rotary.at gives them, from position 0 on. No row sees more than `visible` positions.
// taps[l] [rows, .] with rows tap_stride apart receives the output of layer l where not null.
void dspark_layers(const Shape* shape, const Layer* layers, int64_t count, float* x, int64_t rows, const Row* place,
                   int64_t visible, const float* cos, const float* sin, float* const* taps, int64_t tap_stride,
                   float* scratch, int threads) {
  const int64_t d = shape->width, f = shape->inner, h = shape->head_width, heads = shape->heads, kv = shape->kv_heads;
  const int64_t all_heads = heads + 2 * kv;
  const Scratch parts(*shape, rows, visible);
  const Pages pages(*shape, count);
  const std::vector<Span> tiles = query_tiles(place, rows, heads / kv);
  float* const projected = scratch;                      // [rows, H + 2K, h]
  float* const attended = projected + parts.projected;   // [rows, H, h]
  float* const inner = attended + parts.attended;        // [rows, 2 f]
  float* const added = inner + parts.inner;              // [rows, d]
  float* const own = added + parts.added;                // per thread: normed [rows, d], scores, queries
  const float scale = 1.0f / std::sqrt(float(h));

#pragma omp parallel num_threads(threads)
  {
    float* const normed = own + omp_get_thread_num() * parts.own();
    float* const scores = normed + parts.added;
    float* const queries = scores + kQueries * parts.scores;
    const Span qkv_share = group_share(all_heads * h), width_share = group_share(d);
    const Span gate_up_share = group_share(2 * f), inner_share = share(f);
    const Span row_head_share = share(rows * all_heads);
    for (int64_t l = 0; l < count; ++l) {
      const Layer& layer = layers[l];
      for (int64_t t = 0; t < rows; ++t) rms_norm(x + t * d, layer.input_norm, shape->eps, d, normed + t * d);
      multiply(shape->tiles, normed, rows, d, layer.qkv, d, projected, all_heads * h, qkv_share);
      add_bias(projected, layer.qkv_bias, rows, all_heads * h, qkv_share);
#pragma omp barrier
      for (int64_t item = row_head_share.first; item < row_head_share.last; ++item) {
        const int64_t t = item / all_heads, head = item % all_heads, k = (head - heads) % kv;
        const Row& row = place[t];
        float* const at = projected + item * h;
        if (head < heads + kv) {
          const float* const norm = head < heads ? layer.query_norm : layer.key_norm;
          if (norm) rms_norm(at, norm, shape->eps, h, at);
          rotate(at, cos + row.position * h, sin + row.position * h, h);
        }
        if (head < heads)
          for (int64_t i = 0; i < h; ++i) at[i] *= scale;
        else if (head < heads + kv)
          pages.write_key(row, l, k, at);
        else
          pages.write_value(row, l, k, at);
      }
#pragma omp barrier
      const Attention attention{*shape, pages, place, layer.window, parts.scores, parts.queries, scores, queries};
#pragma omp for schedule(dynamic)
      for (int64_t item = 0; item < int64_t(tiles.size()) * kv; ++item)
        attention.run(l, item % kv, tiles[item / kv], projected, attended);
      multiply(shape->tiles, attended, rows, heads * h, layer.output, heads * h, added, d, width_share);
      add_bias(added, layer.output_bias, rows, d, width_share);
      add(x, added, rows, d, width_share);
#pragma omp barrier
      for (int64_t t = 0; t < rows; ++t) rms_norm(x + t * d, layer.mlp_norm, shape->eps, d, normed + t * d);
      multiply(shape->tiles, normed, rows, d, layer.gate_up, d, inner, 2 * f, gate_up_share);
      add_bias(inner, layer.gate_up_bias, rows, 2 * f, gate_up_share);
#pragma omp barrier
      for (int64_t t = 0; t < rows; ++t) gate(inner + t * 2 * f, inner + t * 2 * f + f, inner_share);
#pragma omp barrier
      multiply(shape->tiles, inner, rows, 2 * f, layer.down, f, added, d, width_share);
      add_bias(added, layer.down_bias, rows, d, width_share);
      add(x, added, rows, d, width_share);
      if (taps[l])
        for (int64_t t = 0; t < rows; ++t)
          for (int64_t i = width_share.first; i < width_share.last; ++i) taps[l][t * tap_stride + i] = x[t * d + i];
#pragma omp barrier
    }
  }
}

struct Context {
  int64_t features;          // m d
  const bf16* combine;       // [d, m d]
  const float* norm;
  const bf16* keys_values;   // [L 2 K h, d]: of every layer, keys before values
  const float* bias;         // [L 2 K h] or null
  const float* key_norms;    // [L, h]
};

// Keys and values of all layers for rows [rows, m d] of features, written where `place` says.
// scratch holds rows (d + L 2 K h) floats and rows d per thread.
void dspark_context(const Shape* shape, const Context* context, int64_t count, const float* x, int64_t rows,
                    const Row* place, const float* cos, const float* sin, float* scratch, int threads) {
  const int64_t d = shape->width, h = shape->head_width, kv = shape->kv_heads, heads = count * 2 * kv;
  float* const combined = scratch;
  float* const projected = combined + rows * d;
  float* const own = projected + rows * heads * h;
  const Pages pages(*shape, count);

#pragma omp parallel num_threads(threads)
  {
    float* const normed = own + omp_get_thread_num() * rows * d;
    const Span head_share = share(heads);
    multiply(shape->tiles, x, rows, context->features, context->combine, context->features, combined, d, group_share(d));
#pragma omp barrier
    for (int64_t t = 0; t < rows; ++t) rms_norm(combined + t * d, context->norm, shape->eps, d, normed + t * d);
    const Span columns = group_share(heads * h);
    multiply(shape->tiles, normed, rows, d, context->keys_values, d, projected, heads * h, columns);
    add_bias(projected, context->bias, rows, heads * h, columns);
#pragma omp barrier
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t head = head_share.first; head < head_share.last; ++head) {
        float* const at = projected + (t * heads + head) * h;
        const int64_t layer = head / (2 * kv), k = head % (2 * kv);
        const Row& row = place[t];
        if (k < kv) {
          rms_norm(at, context->key_norms + layer * h, shape->eps, h, at);
          rotate(at, cos + row.position * h, sin + row.position * h, h);
          pages.write_key(row, layer, k, at);
        } else {
          pages.write_value(row, layer, k - kv, at);
        }
      }
  }
}
}
