/* Products of f32 with the rows of a matrix, as a linear layer has them, whose weights
   are f32, bf16 or f16. Few rows: sums along the rows, at the speed of memory. Many:
   panels of the weights are transposed in the cache and used for all rows. */
#include "vector.h"

#define PANEL (2 * LANES)
#define DEPTH 128
#ifndef AHEAD
#define AHEAD wide
#endif
#define TALL (REGISTERS == 32 ? 12 : 6)
/* Rows of w whose sums with `many` rows of x stay in registers. */
#define WIDE(many) (REGISTERS == 32 ? (many <= 6 ? 4 : 3) : (many <= 4 ? 2 : 1))

/* y[many, PANEL] (+)= x[many, count] . panel, added where `onto` is not 0. */
INLINE void tile(const int many, const float *x, const float *panel, float *y,
                 size_t columns, size_t depth, size_t count, size_t onto) {
  V sums[12][2];
  UNROLL for (int m = 0; m < many; m++) {
    UNROLL for (int n = 0; n < 2; n++)
      sums[m][n] = onto ? *(const V *)(y + m * columns + n * LANES) : (V){};
  }
  for (size_t k = 0; k < count; k++) {
    V first = *(const V *)(panel + k * PANEL);
    V second = *(const V *)(panel + k * PANEL + LANES);
    UNROLL for (int m = 0; m < many; m++) {
      float value = x[m * depth + k];
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
