/* Products of f32 with the rows of a matrix, as a linear layer has them, whose weights
   are f32, bf16 or f16. Few rows: sums along the rows, at the speed of memory. Many:
   panels of the weights are transposed in the cache and used for all rows. And products
   of a transposed matrix with another, as the gradient of weights is, at the end. */
#include "vector.h"

#define PANEL (2 * LANES)
#define DEPTH 128
#ifndef AHEAD
#define AHEAD wide
#endif
#define TALL (REGISTERS == 32 ? 12 : 6)
/* Rows of w whose sums with `many` rows of x stay in registers. */
#define WIDE(many) (REGISTERS == 32 ? (many <= 6 ? 4 : 3) : (many <= 4 ? 2 : 1))

/* y[many, PANEL] (+)= x[many, count] . panel, added where `onto` is not 0. Elements of x
   are `row` from those of the next row, and `step` from the next of theirs. */
INLINE void tile(const int many, const float *x, size_t row, size_t step,
                 const float *panel, float *y, size_t columns, size_t count,
                 size_t onto) {
  V sums[12][2];
  UNROLL for (int m = 0; m < many; m++) {
    UNROLL for (int n = 0; n < 2; n++)
      sums[m][n] = onto ? *(const V *)(y + m * columns + n * LANES) : (V){};
  }
  for (size_t k = 0; k < count; k++) {
    V first = *(const V *)(panel + k * PANEL);
    V second = *(const V *)(panel + k * PANEL + LANES);
    UNROLL for (int m = 0; m < many; m++) {
      float value = x[m * row + k * step];
      sums[m][0] += value * first;
      sums[m][1] += value * second;
    }
  }
  UNROLL for (int m = 0; m < many; m++) {
    UNROLL for (int n = 0; n < 2; n++) *(V *)(y + m * columns + n * LANES) = sums[m][n];
  }
}

#define W float
#define NAME(x) x##_f32
#include "product.h"

#define W uint16_t
#define NAME(x) x##_bf16
#include "product.h"

#define W uint16_t
#define NAME(x) x##_f16
#include "product.h"

/* y[rows, columns] = x[depth, rows]^T . g[depth, columns], a part of the result at a time.
   Of both operands what is read again is put together first: rows that lie a power of
   two apart would evict each other from the cache. */

#define STEPS 192
#define MOST (22 * TALL)
#define STRIP (STEPS * TALL + LANES) /* a vector's end may lie beyond the last row */

/* `many` columns of x, in strips of TALL: [STEPS][TALL], zeros behind them. Of each row
   of x there are `left` elements from here on. */
INLINE void strips(float *into, const float *x, size_t rows, size_t many, size_t left,
                   size_t count) {
  for (size_t k = 0; k < count; k++, x += rows, into += TALL) {
    for (size_t m = 0; m < many; m += LANES) __builtin_prefetch(x + 8 * rows + m);
    size_t m = 0;
    for (; m < many && m + TALL + LANES <= left; m += TALL) {
      UNROLL for (int i = 0; i < TALL; i += LANES)
        *(V *)(into + m / TALL * STRIP + i) = *(const V *)(x + m + i);
    }
    for (; m < many; m += TALL) {
      for (size_t i = 0; i < TALL; i++)
        into[m / TALL * STRIP + i] = m + i < many ? x[m + i] : 0;
    }
  }
}

/* `wide` columns of g as a panel, zeros behind them. */
INLINE void wide_panel(float *into, const float *g, size_t columns, size_t wide,
                       size_t count) {
  for (size_t k = 0; k < count; k++, g += columns, into += PANEL) {
    __builtin_prefetch(g + 16 * columns);
    if (wide == PANEL) {
      *(V *)into = *(const V *)g;
      *(V *)(into + LANES) = *(const V *)(g + LANES);
    } else {
      for (size_t n = 0; n < PANEL; n++) into[n] = n < wide ? g[n] : 0;
    }
  }
}

/* A tile of sums to y, or onto it. */
INLINE void put(const float *sums, float *y, size_t columns, size_t many, size_t wide,
                size_t onto) {
  for (size_t m = 0; m < many; m++, sums += PANEL, y += columns) {
    if (wide == PANEL) {
      UNROLL for (int n = 0; n < PANEL; n += LANES) {
        V sum = *(const V *)(sums + n);
        if (onto) sum += *(const V *)(y + n);
        *(V *)(y + n) = sum;
      }
    } else {
      for (size_t n = 0; n < wide; n++) y[n] = onto ? y[n] + sums[n] : sums[n];
    }
  }
}

void pcp_transposed_f32(const float *x, size_t xo, const float *g, size_t go, float *y,
                        size_t yo, size_t part, size_t height, size_t width,
                        size_t rows, size_t columns, size_t depth) {
  float strip[MOST / TALL * STRIP] __attribute__((aligned(64)));
  float panel[STEPS * PANEL] __attribute__((aligned(64)));
  float sums[TALL * PANEL] __attribute__((aligned(64)));
  size_t across = (columns + width - 1) / width, edge = part % across * width;
  size_t first = part / across * height, many = rows - first, last = edge + width;
  if (many > height) many = height;
  if (last > columns) last = columns;
  x += xo + first, g += go, y += yo + first * columns;
  for (size_t k = 0; k < depth; k += STEPS) {
    size_t count = depth - k < STEPS ? depth - k : STEPS;
    strips(strip, x + k * rows, rows, many, rows - first, count);
    for (size_t n = edge; n < last; n += PANEL) {
      size_t wide = last - n < PANEL ? last - n : PANEL, m = 0;
      wide_panel(panel, g + k * columns + n, columns, wide, count);
      for (; m < many; m += TALL) {
        size_t tall = many - m < TALL ? many - m : TALL;
        tile(TALL, strip + m / TALL * STRIP, 1, TALL, panel, sums, PANEL, count, 0);
        put(sums, y + m * columns + n, columns, tall, wide, k);
      }
    }
  }
}
