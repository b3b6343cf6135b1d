// A few rows through a stack of decoder layers: one call, one parallel region, every weight read once from memory.
//
// The torch layers are the oracle. A row's result has the same bits whatever other rows are computed with it: each
// sum runs over its own index in a fixed order, so decoding one token or verifying several gives identical logits.
//
// T rows, d width, H query heads, K key/value heads, h head width, G = H / K, f inner width of the MLP.

#include "attention.h"
#include "laws.h"

namespace {

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
void gate(float* gate, const float* up, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(gate + i, silu_times(load(gate + i), load(up + i)));
  if (i == count) return;
  float g[kLanes] = {}, u[kLanes] = {};
  std::memcpy(g, gate + i, (count - i) * sizeof(float));
  std::memcpy(u, up + i, (count - i) * sizeof(float));
  store(g, silu_times(load(g), load(u)));
  std::memcpy(gate + i, g, (count - i) * sizeof(float));
}

}  // namespace

extern "C" {

struct Layer {
  const float* input_norm;
  const void* qkv;          // [(H + 2K) h, d]
  const float* qkv_bias;    // biases may be null, and so may query_norm together with key_norm
  const float* query_norm;
  const float* key_norm;
  const void* output;       // [d, H h]
  const float* output_bias;
  const float* mlp_norm;
  const void* gate_up;      // [2 f, d]
  const float* gate_up_bias;
  const void* down;         // [d, f]
  const float* down_bias;
  int64_t window;           // positions that a token sees, itself included; 0: all
};

}

namespace {

// Lengths of the parts of the scratch, each of whole cache lines: a row that straddles two is read twice.
struct Scratch {
  int64_t projected, attended, inner, added, taken, normed, scores, queries;

  Scratch(const Shape& shape, int64_t rows, int64_t visible)
      : projected(whole_lines(rows * (shape.heads + 2 * shape.kv_heads) * shape.head_width)),
        attended(whole_lines(rows * shape.heads * shape.head_width)),
        inner(whole_lines(rows * 2 * shape.inner)),
        added(whole_lines(rows * shape.width)),
        taken(kLine / sizeof(float) * Operand::lines(shape.packing, rows, widest(shape))),
        normed(whole_lines(shape.width)),
        scores(up(visible, kPage) * kPage + kPage),  // of a row; a line more, lest rows compete for the same cache lines
        queries(up(shape.head_width, kDepth) * kDepth) {}

  int64_t own() const { return normed + kQueries * (scores + queries); }
  int64_t size(int threads) const { return projected + attended + inner + added + taken + threads * own(); }
  static int64_t widest(const Shape& shape) { return std::max({shape.width, shape.inner, shape.heads * shape.head_width}); }
  static int64_t whole_lines(int64_t floats) { return (floats + 15) / 16 * 16; }
};

}  // namespace

extern "C" {

// Whether this processor and system multiply tiles; asks for them.
int dspark_tiles() {
  static const bool can = permitted();
  return can;
}

// Bytes of a packed matrix [out, in].
int64_t dspark_packed_size(int64_t out, int64_t in, int64_t packing) { return packed_bytes(packing, out, in); }

// Copy w [out, in]. For vectors so that `low` and `high` find their halves; what does not fill a block stays as it is.
// For tiles, each holding kGroup outputs and kDepth inputs, pairs of inputs side by side; groups of outputs outermost.
// For bytes the same with fours of inputs.
void dspark_pack(const bf16* w, int64_t out, int64_t in, void* memory, int64_t packing, int threads) {
  const int64_t whole = in - in % kBlock, depth = up(in, kDepth);
  bf16* const packed = (bf16*)memory;
  if (packing == kBytes) {
#pragma omp parallel for num_threads(threads)
    for (int64_t g = 0; g < up(out, kGroup); ++g) pack_bytes(w, out, in, g, (char*)memory + g * byte_group(in));
    return;
  }
  if (packing == kTiles) {
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
void dspark_linear(const float* x, int64_t rows, int64_t in, const void* w, const float* bias, int64_t out, float* y,
                   int64_t packing, int threads) {
  std::vector<Line> memory(Operand::lines(packing, rows, in));
  const Operand operand(packing, rows, in, memory.data());
#pragma omp parallel num_threads(threads)
  {
    const Span own = group_share(out);
#pragma omp for
    for (int64_t t = 0; t < rows; ++t) operand.take(t, x + t * in);
    operand.multiply(w, y, out, own);
    add_bias(y, bias, rows, out, own);
  }
}

// Of each row of x [rows, in] the largest of its products with w [out, in], and the first output that has it, without
// keeping the products. A row with products that are not finite has NaN.
void dspark_best(const float* x, int64_t rows, int64_t in, const void* w, int64_t out, float* best, int64_t* place,
                 int64_t packing, int threads) {
  constexpr int64_t kColumns = 1024;         // products that are looked at while they are in the second-level cache
  constexpr int64_t kStride = kColumns + 16;  // lest rows compete for the same cache lines
  std::vector<Line> memory(Operand::lines(packing, rows, in));
  const Operand operand(packing, rows, in, memory.data());
  std::vector<float> tops(threads * rows, -INFINITY);
  std::vector<int64_t> places(threads * rows, 0);
  int team = 1;
#pragma omp parallel num_threads(threads)
  {
    if (omp_get_thread_num() == 0) team = omp_get_num_threads();
    std::vector<float> products(rows * kStride);
    float* const own_tops = tops.data() + omp_get_thread_num() * rows;
    int64_t* const own_places = places.data() + omp_get_thread_num() * rows;
    const Span own = group_share(out);
#pragma omp for
    for (int64_t t = 0; t < rows; ++t) operand.take(t, x + t * in);
    for (int64_t o = own.first; o < own.last; o += kColumns) {
      const int64_t count = own.last - o < kColumns ? own.last - o : kColumns;
      const char* const from = (const char*)w + packed_bytes(packing, o, in);
      operand.multiply(from, products.data(), kStride, {0, count});
      for (int64_t t = 0; t < rows; ++t) {
        const float* const row = products.data() + t * kStride;
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
  Line* const taken = (Line*)(added + parts.added);      // what the next product multiplies
  float* const own = added + parts.added + parts.taken;  // per thread: normed [d], scores, queries
  const Operand normal(shape->packing, rows, d, taken), mixed(shape->packing, rows, heads * h, taken);
  const auto biased = [](const Layer& layer) { return layer.gate_up_bias != nullptr; };
  const bool fused = shape->packing == kTiles && f % kDepth == 0 && std::none_of(layers, layers + count, biased);
  const Operand gated(shape->packing, rows, f, fused ? (Line*)inner : taken);
  const float scale = 1.0f / std::sqrt(float(h));

#pragma omp parallel num_threads(threads)
  {
    float* const normed = own + omp_get_thread_num() * parts.own();
    float* const scores = normed + parts.normed;
    float* const queries = scores + kQueries * parts.scores;
    const Span qkv_share = group_share(all_heads * h), width_share = group_share(d);
    const Span gate_up_share = group_share(2 * f), row_share = share(rows), row_head_share = share(rows * all_heads);
    const int64_t items = int64_t(tiles.size()) * kv, turn = std::max<int64_t>(items / (32 * omp_get_num_threads()), 1);
    const auto take_normal = [&](const float* weight) {
      for (int64_t t = row_share.first; t < row_share.last; ++t) {
        rms_norm(x + t * d, weight, shape->eps, d, normed);
        normal.take(t, normed);
      }
    };
    for (int64_t l = 0; l < count; ++l) {
      const Layer& layer = layers[l];
      take_normal(layer.input_norm);
#pragma omp barrier
      normal.multiply(layer.qkv, projected, all_heads * h, qkv_share);
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
#pragma omp for schedule(dynamic, turn)
      for (int64_t item = 0; item < items; ++item)
        attention.run(l, item % kv, tiles[item / kv], projected, attended);
      for (int64_t t = row_share.first; t < row_share.last; ++t) mixed.take(t, attended + t * heads * h);
#pragma omp barrier
      mixed.multiply(layer.output, added, d, width_share);
      add_bias(added, layer.output_bias, rows, d, width_share);
      add(x, added, rows, d, width_share);
#pragma omp barrier
      take_normal(layer.mlp_norm);
#pragma omp barrier
      if (fused) {
        normal.multiply_gated(layer.gate_up, gated, share(f / kGroup));
      } else {
        normal.multiply(layer.gate_up, inner, 2 * f, gate_up_share);
        add_bias(inner, layer.gate_up_bias, rows, 2 * f, gate_up_share);
#pragma omp barrier
        for (int64_t t = row_share.first; t < row_share.last; ++t) {
          gate(inner + t * 2 * f, inner + t * 2 * f + f, f);
          gated.take(t, inner + t * 2 * f);
        }
      }
#pragma omp barrier
      gated.multiply(layer.down, added, d, width_share);
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
  const void* combine;       // [d, m d]
  const float* norm;
  const void* keys_values;   // [L 2 K h, d]: of every layer, keys before values
  const float* bias;         // [L 2 K h] or null
  const float* key_norms;    // [L, h]
};

// Keys and values of all layers for rows [rows, m d] of features, written where `place` says.
// scratch holds rows (d + L 2 K h) floats and d per thread.
void dspark_context(const Shape* shape, const Context* context, int64_t count, const float* x, int64_t rows,
                    const Row* place, const float* cos, const float* sin, float* scratch, int threads) {
  const int64_t d = shape->width, h = shape->head_width, kv = shape->kv_heads, heads = count * 2 * kv;
  float* const combined = scratch;
  float* const projected = combined + rows * d;
  float* const own = projected + rows * heads * h;
  const Pages pages(*shape, count);
  std::vector<Line> memory(Operand::lines(shape->packing, rows, std::max(d, context->features)));
  const Operand features(shape->packing, rows, context->features, memory.data());
  const Operand normal(shape->packing, rows, d, memory.data());

#pragma omp parallel num_threads(threads)
  {
    float* const normed = own + omp_get_thread_num() * d;
    const Span head_share = share(heads);
#pragma omp for
    for (int64_t t = 0; t < rows; ++t) features.take(t, x + t * context->features);
    features.multiply(context->combine, combined, d, group_share(d));
#pragma omp barrier
#pragma omp for
    for (int64_t t = 0; t < rows; ++t) {
      rms_norm(combined + t * d, context->norm, shape->eps, d, normed);
      normal.take(t, normed);
    }
    const Span columns = group_share(heads * h);
    normal.multiply(context->keys_values, projected, heads * h, columns);
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
