// What rows of logits say: their largest, the law behind them, and the chain of greedy drafts.

#pragma once

#include <algorithm>
#include "products.h"

namespace {

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

// Of the law behind logits [width]: log-odds of its largest probability `top`, and entropy in nats.
void law_signals(const float* row, int64_t width, float top, float* peak, float* entropy) {
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
  *peak = -std::log(rest > 1e-7f ? rest : 1e-7f);
  *entropy = std::log(total) - sum(products) / total;
}

}  // namespace

extern "C" {

// `law_signals` of each row of logits [rows, width].
void dspark_law_signals(const float* logits, int64_t rows, int64_t width, float* peak, float* entropy, int threads) {
#pragma omp parallel for num_threads(threads)
  for (int64_t t = 0; t < rows; ++t) {
    const float* const row = logits + t * width;
    law_signals(row, width, largest(row, width), peak + t, entropy + t);
  }
}

// A Markov head: w1 [., rank] by target id, w2 [width, rank] packed, ids [width] of the target or null where they are
// the drafter's.
struct MarkovHead {
  int64_t rank, width, packing;
  const float* w1;
  const void* w2;
  const int64_t* ids;
};

// Greedy drafts [rows, slots] of blocks whose logits without the head are base [rows, slots, width]: each is the first
// of the largest of base + w2 w1[token before]. `previous` [rows] are the tokens before, and then the last ones. A draft
// whose logits are not finite is -1, and so are those after it. Scratch holds rows width floats.
void dspark_chain(const MarkovHead* head, const float* base, int64_t rows, int64_t slots, int64_t* previous,
                  int64_t* tokens, float* peak, float* entropy, float* logits, int threads) {
  const int64_t width = head->width, rank = head->rank;
  std::vector<Line> memory(Operand::lines(head->packing, rows, rank));
  const Operand latents(head->packing, rows, rank, memory.data());
#pragma omp parallel num_threads(threads)
  for (int64_t slot = 0; slot < slots; ++slot) {
#pragma omp for
    for (int64_t t = 0; t < rows; ++t) latents.take(t, head->w1 + (previous[t] < 0 ? 0 : previous[t]) * rank);
    latents.multiply(head->w2, logits, width, group_share(width));
#pragma omp barrier
#pragma omp for
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t at = t * slots + slot;
      float* const row = logits + t * width;
      const float* const own = base + at * width;
      for (int64_t i = 0; i < width; ++i) row[i] = own[i] + row[i];
      const float top = largest(row, width);
      if (previous[t] >= 0 && top + spoilt(row, width) < INFINITY) {
        const int64_t best = std::find(row, row + width, top) - row;
        previous[t] = head->ids ? head->ids[best] : best;
      } else {
        previous[t] = -1;
      }
      tokens[at] = previous[t];
      law_signals(row, width, top, peak + at, entropy + at);
    }
  }
}

}
