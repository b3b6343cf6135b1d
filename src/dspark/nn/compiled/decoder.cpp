// A few rows through a stack of decoder layers: one call, one parallel region, every weight read once from memory.
//
// The torch layers are the oracle. A row's result has the same bits whatever other rows are computed with it: each
// sum runs over its own index in a fixed order, so decoding one token or verifying several gives identical logits.
//
// T rows, d width, H query heads, K key/value heads, h head width, G = H / K, f inner width of the MLP.

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
Vector low(const float* at) { return load(at); }
Vector high(const float* at) { return load(at + kLanes); }

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

float widen(float value) { return value; }

float widen(bf16 value) {
  const uint32_t bits = uint32_t(value) << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof wide);
  return wide;
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
Vector exponential(Vector x) {
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
template <int R, int O, typename Weight>
void tile(const float* x, int64_t x_stride, const Weight* w, int64_t w_stride, int64_t in, float* y, int64_t y_stride) {
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
template <int R, int O, typename Weight>
int64_t outputs(const float* x, int64_t x_stride, const Weight* w, int64_t w_stride, int64_t in, float* y,
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
template <typename Weight>
void product(const float* x, int64_t rows, int64_t x_stride, const Weight* w, int64_t w_stride, int64_t in, float* y,
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

// The processor's matrix unit, with activation tiles of `height` rows. Each thread configures its own.
void configure(int height) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; ++i) {
    config.bytes[i] = 64;
    config.rows[i] = uint8_t(i < 5 ? height : kGroup);
  }
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

// Scores to weights, in place; returns their sum. The tail is padded to whole vectors, by weights that vanish in the sum.
float soften(float* scores, int64_t count) {
  float peak = scores[0];
  for (int64_t s = 1; s < count; ++s) peak = scores[s] > peak ? scores[s] : peak;
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t s = count; s < padded; ++s) scores[s] = -INFINITY;
  Vector total = {};
  for (int64_t s = 0; s < padded; s += kLanes) {
    const Vector weights = exponential(load(scores + s) - peak);
    store(scores + s, weights);
    total += weights;
  }
  return sum(total);
}

void mix(const float* weights, const float* values, int64_t count, float scale, int64_t width, float* y) {
  constexpr int kWide = 4;
  int64_t i = 0;
  for (; i + kWide * kLanes <= width; i += kWide * kLanes) {
    Vector total[kWide] = {};
    for (int64_t s = 0; s < count; ++s)
      for (int j = 0; j < kWide; ++j) total[j] += load(values + s * width + i + j * kLanes) * weights[s];
    for (int j = 0; j < kWide; ++j) store(y + i + j * kLanes, total[j] * scale);
  }
  for (; i < width; ++i) {
    float total = 0;
    for (int64_t s = 0; s < count; ++s) total += values[s * width + i] * weights[s];
    y[i] = total * scale;
  }
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

// silu(gate) * up, kept in gate. The tail is padded to a whole vector, so that a value never depends on its place.
void gate(float* gate, const float* up, Span own) {
  for (int64_t i = own.first; i < own.last; i += kLanes) {
    const int64_t count = own.last - i < kLanes ? own.last - i : kLanes;
    float g[kLanes] = {}, u[kLanes] = {};
    std::memcpy(g, gate + i, count * sizeof(float));
    std::memcpy(u, up + i, count * sizeof(float));
    const Vector x = load(g);
    store(g, x / (1.0f + exponential(-x)) * load(u));
    std::memcpy(gate + i, g, count * sizeof(float));
  }
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

// Where a row stands: at `position` of a request, seeing that request's first `visible` positions. Keys of layer l,
// head k, position s lie at keys + l * layer_stride + k * head_stride + s * h, values alike.
struct Row {
  float* keys;
  float* values;
  int64_t layer_stride, head_stride, position, visible;
};

}

namespace {

// Lengths of the parts of the scratch, each of whole cache lines: a row that straddles two is read twice.
struct Scratch {
  int64_t projected, attended, inner, added, group, visible;

  Scratch(const Shape& shape, int64_t rows, int64_t visible)
      : projected(whole_lines(rows * (shape.heads + 2 * shape.kv_heads) * shape.head_width)),
        attended(whole_lines(rows * shape.heads * shape.head_width)),
        inner(whole_lines(rows * 2 * shape.inner)),
        added(whole_lines(rows * shape.width)),
        group(shape.heads / shape.kv_heads),
        visible(whole_lines(visible + kLanes)) {}

  int64_t own() const { return added + group * visible; }
  int64_t size(int threads) const { return projected + attended + inner + added + threads * own(); }
  static int64_t whole_lines(int64_t floats) { return (floats + 15) / 16 * 16; }
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

// Floats of scratch that `dspark_layers` needs for rows tokens that see up to `visible` positions.
int64_t dspark_scratch(const Shape* shape, int64_t rows, int64_t visible, int threads) {
  return Scratch(*shape, rows, visible).size(threads);
}

// x [rows, d] through all layers, in place, each row where `place` says, its keys and values written there.
// cos, sin [positions, h] as Rotary.at gives them, from position 0 on. No row sees more than `visible` positions.
// taps[l] [rows, .] with rows tap_stride apart receives the output of layer l where not null.
void dspark_layers(const Shape* shape, const Layer* layers, int64_t count, float* x, int64_t rows, const Row* place,
                   int64_t visible, const float* cos, const float* sin, float* const* taps, int64_t tap_stride,
                   float* scratch, int threads) {
  const int64_t d = shape->width, f = shape->inner, h = shape->head_width, heads = shape->heads, kv = shape->kv_heads;
  const int64_t group = heads / kv, all_heads = heads + 2 * kv;
  const Scratch parts(*shape, rows, visible);
  float* const projected = scratch;                      // [rows, H + 2K, h]
  float* const attended = projected + parts.projected;   // [rows, H, h]
  float* const inner = attended + parts.attended;        // [rows, 2 f]
  float* const added = inner + parts.inner;              // [rows, d]
  float* const own = added + parts.added;                // per thread: normed [rows, d], scores [G, visible]
  const float scale = 1.0f / std::sqrt(float(h));

#pragma omp parallel num_threads(threads)
  {
    float* const normed = own + omp_get_thread_num() * parts.own();
    float* const scores = normed + parts.added;
    const Span qkv_share = group_share(all_heads * h), width_share = group_share(d);
    const Span gate_up_share = group_share(2 * f), inner_share = share(f);
    const Span row_head_share = share(rows * all_heads), attention_share = share(rows * kv);
    for (int64_t l = 0; l < count; ++l) {
      const Layer& layer = layers[l];
      for (int64_t t = 0; t < rows; ++t) rms_norm(x + t * d, layer.input_norm, shape->eps, d, normed + t * d);
      multiply(shape->tiles, normed, rows, d, layer.qkv, d, projected, all_heads * h, qkv_share);
      add_bias(projected, layer.qkv_bias, rows, all_heads * h, qkv_share);
#pragma omp barrier
      for (int64_t item = row_head_share.first; item < row_head_share.last; ++item) {
        const int64_t t = item / all_heads, head = item % all_heads, k = (head - heads) % kv;
        const Row& row = place[t];
        const int64_t here = l * row.layer_stride + k * row.head_stride + row.position * h;
        float* const at = projected + item * h;
        if (head < heads + kv) {
          const float* const norm = head < heads ? layer.query_norm : layer.key_norm;
          if (norm) rms_norm(at, norm, shape->eps, h, at);
          rotate(at, cos + row.position * h, sin + row.position * h, h);
        }
        if (head < heads)
          for (int64_t i = 0; i < h; ++i) at[i] *= scale;
        else
          std::memcpy((head < heads + kv ? row.keys : row.values) + here, at, h * sizeof(float));
      }
#pragma omp barrier
      for (int64_t item = attention_share.first; item < attention_share.last; ++item) {
        const int64_t t = item % rows, k = item / rows;
        const Row& row = place[t];
        const int64_t first = layer.window && row.visible > layer.window ? row.visible - layer.window : 0;
        const int64_t seen = row.visible - first, stride = parts.visible;
        const int64_t offset = l * row.layer_stride + k * row.head_stride + first * h;
        const float* const query = projected + (t * all_heads + k * group) * h;
        product(query, group, h, row.keys + offset, h, h, scores, stride, {0, seen});
        for (int64_t g = 0; g < group; ++g) {
          const float total = soften(scores + g * stride, seen);
          mix(scores + g * stride, row.values + offset, seen, 1.0f / total, h,
              attended + (t * heads + k * group + g) * h);
        }
      }
#pragma omp barrier
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
        const int64_t here = layer * row.layer_stride + k % kv * row.head_stride + row.position * h;
        if (k < kv) {
          rms_norm(at, context->key_norms + layer * h, shape->eps, h, at);
          rotate(at, cos + row.position * h, sin + row.position * h, h);
        }
        std::memcpy((k < kv ? row.keys : row.values) + here, at, h * sizeof(float));
      }
  }
}
}
