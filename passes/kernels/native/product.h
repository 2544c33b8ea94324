/* One type of weights: W, and NAME(x), which is x with the type behind it.

   y[rows, n] = x[rows, depth] . w[n, depth]^T, for n of one part of the columns. */

/* The sums of `many` rows of x with `wide` rows of w, all of which are constants. Each
   weight is read once. */
INLINE void NAME(dots)(const int many, const int wide, const float *x, const W *w,
                       float *y, size_t columns, size_t depth) {
  V sums[8][8];
  UNROLL for (int m = 0; m < many; m++) {
    UNROLL for (int n = 0; n < wide; n++) sums[m][n] = (V){};
  }
  size_t k = 0;
  for (; k + LANES <= depth; k += LANES) {
    V weights[8];
    UNROLL for (int n = 0; n < wide; n++) {
      weights[n] = NAME(load)(w + n * depth + k);
      __builtin_prefetch(w + (n + AHEAD) * depth + k);
    }
    UNROLL for (int m = 0; m < many; m++) {
      V values = *(const V *)(x + m * depth + k);
      UNROLL for (int n = 0; n < wide; n++) sums[m][n] += values * weights[n];
    }
  }
  for (int m = 0; m < many; m++) {
    for (int n = 0; n < wide; n++) {
      float sum = total(sums[m][n]);
      for (size_t i = k; i < depth; i++)
        sum += x[m * depth + i] * NAME(one)(w + n * depth + i);
      y[m * columns + n] = sum;
    }
  }
}

INLINE void NAME(rows)(const int many, const int wide, const float *x, const W *w,
                       float *y, size_t first, size_t last, size_t columns,
                       size_t depth) {
  size_t n = first;
  for (; n + wide <= last; n += wide)
    NAME(dots)(many, wide, x, w + n * depth, y + n, columns, depth);
  for (; n < last; n++) NAME(dots)(many, 1, x, w + n * depth, y + n, columns, depth);
}

/* Rows `n` to `n + PANEL` of w from k on, transposed to [DEPTH][PANEL]. */
INLINE void NAME(panel)(float *into, const W *w, size_t depth, size_t count) {
  size_t k = 0;
  for (; k + LANES <= count; k += LANES) {
    for (int half = 0; half < PANEL; half += LANES) {
      V rows[LANES];
      UNROLL for (int i = 0; i < LANES; i++)
        rows[i] = NAME(load)(w + (half + i) * depth + k);
      transpose(rows);
      UNROLL for (int i = 0; i < LANES; i++)
        *(V *)(into + (k + i) * PANEL + half) = rows[i];
    }
  }
  for (; k < count; k++)
    for (int n = 0; n < PANEL; n++) into[k * PANEL + n] = NAME(one)(w + n * depth + k);
}

/* Many rows of x: panels of w are transposed, so that a lane is a column. */
INLINE void NAME(block)(const float *x, const W *w, float *y, size_t rows,
                        size_t columns, size_t depth) {
  float panel[DEPTH * PANEL] __attribute__((aligned(64)));
  for (size_t k = 0; k < depth; k += DEPTH) {
    size_t count = depth - k < DEPTH ? depth - k : DEPTH;
    NAME(panel)(panel, w + k, depth, count);
    size_t m = 0;
    for (; m + TALL <= rows; m += TALL)
      tile(TALL, x + m * depth + k, depth, 1, panel, y + m * columns, columns, count, k);
    for (; m + 4 <= rows; m += 4)
      tile(4, x + m * depth + k, depth, 1, panel, y + m * columns, columns, count, k);
    for (; m < rows; m++)
      tile(1, x + m * depth + k, depth, 1, panel, y + m * columns, columns, count, k);
  }
}

void NAME(pcp_product)(const float *x, size_t xo, const W *w, size_t wo, float *y,
                       size_t yo, size_t part, size_t width, size_t rows,
                       size_t columns, size_t depth) {
  x += xo, w += wo, y += yo;
  size_t first = part * width, last = first + width < columns ? first + width : columns;
  switch (rows) {
#define CASE(many, wide) \
  case many: \
    return NAME(rows)(many, wide, x, w, y, first, last, columns, depth);
    CASE(1, 4)
    CASE(2, 4)
    CASE(3, WIDE(3))
    CASE(4, WIDE(4))
    CASE(5, WIDE(5))
    CASE(6, WIDE(6))
    CASE(7, WIDE(7))
    CASE(8, WIDE(8))
#undef CASE
  }
  for (; first + PANEL <= last; first += PANEL)
    NAME(block)(x, w + first * depth, y + first, rows, columns, depth);
  for (size_t m = 0; m < rows; m++)
    NAME(rows)(1, 4, x + m * depth, w, y + m * columns, first, last, columns, depth);
}

#undef W
#undef NAME
