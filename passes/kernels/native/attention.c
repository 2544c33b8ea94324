/* Attention of f32 by blocks, and its derivative, for one head of one sequence at a time:

       e = exp(scale * q . k^T - m), m the largest of a row;  y = e . v;  l = sums of e
       ds = (g . v^T + d) * e * by;  dq = ds . k;  dk = ds^T . q;  dv = e^T . g

   Row r sees the columns up to r + ahead, the others are as if they were minus infinity;
   what no row of a block sees is left out. All pairs of positions are nowhere in memory.
   Rows are whole tiles, columns whole panels, and the width is whole vectors. */
#include "vector.h"

#define PANEL (2 * LANES)
#define TILE (REGISTERS == 32 ? 8 : 4)
#define BLOCK 64       /* columns at a time */
#define MANY 128       /* rows for which columns are packed once */
#define DEEP 32        /* rows whose sums go into a column at once */
#define MOST_WIDTH 64

/* Rows of results are `apart`: all heads of a position lie together. */
typedef struct { size_t rows, columns, width, ahead, apart; float scale, by; } Shape;

INLINE V splat(float x) { return (V){} + x; }

INLINE V chosen(I mask, V a, V b) { return (V)((mask & (I)a) | (~mask & (I)b)); }

INLINE V larger(V a, V b) { return chosen(a > b, a, b); }

/* e^x for x up to 0; a quotient of what is not a number stays none. */
INLINE V exponential(V x) {
  const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds */
  V shifted = x * 1.44269504f + magic;
  V n = shifted - magic;
  V r = x - n * 0.693359375f + n * 2.12194440e-4f;
  V p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  I power = ((I)shifted - 0x4B400000 + 127) << 23;
  V whole = p * (V)power;
  return chosen(x < -87.0f, (V){}, whole);
}

/* c[TILE, parts] (+)= a . b over k: a by its strides, b row by row. */
INLINE void sums(const int parts, float *c, size_t c_row, const float *a, size_t a_row,
                 size_t a_step, const float *b, size_t b_row, size_t first, size_t last,
                 const int onto) {
  V sum[TILE][2];
  UNROLL for (int m = 0; m < TILE; m++) {
    UNROLL for (int n = 0; n < parts; n++)
      sum[m][n] = onto ? *(const V *)(c + m * c_row + n * LANES) : (V){};
  }
  for (size_t k = first; k < last; k++) {
    V right[2];
    UNROLL for (int n = 0; n < parts; n++) right[n] = *(const V *)(b + k * b_row + n * LANES);
    UNROLL for (int m = 0; m < TILE; m++) {
      float left = a[m * a_row + k * a_step];
      UNROLL for (int n = 0; n < parts; n++) sum[m][n] += left * right[n];
    }
  }
  UNROLL for (int m = 0; m < TILE; m++) {
    UNROLL for (int n = 0; n < parts; n++) *(V *)(c + m * c_row + n * LANES) = sum[m][n];
  }
}

/* The same for all columns of c, whole vectors. */
INLINE void product(float *c, size_t c_row, const float *a, size_t a_row, size_t a_step,
                    const float *b, size_t b_row, size_t first, size_t last, size_t width) {
  size_t n = 0;
  for (; n + PANEL <= width; n += PANEL)
    sums(2, c + n, c_row, a, a_row, a_step, b + n, b_row, first, last, 1);
  for (; n < width; n += LANES)
    sums(1, c + n, c_row, a, a_row, a_step, b + n, b_row, first, last, 1);
}

/* Columns of a block as panels [width][PANEL]. */
static void packed(float *into, const float *rows, size_t row, size_t count, size_t width) {
  for (size_t t = 0; t < count; t += LANES) {
    float *panel = into + t / PANEL * PANEL * width + t % PANEL;
    for (size_t d = 0; d < width; d += LANES) {
      V square[LANES];
      UNROLL for (int i = 0; i < LANES; i++)
        square[i] = *(const V *)(rows + (t + i) * row + d);
      transpose(square);
      UNROLL for (int i = 0; i < LANES; i++) *(V *)(panel + (d + i) * PANEL) = square[i];
    }
  }
}

/* How many of `count` columns from `column` on a tile from `row` on needs. */
INLINE size_t seen(const Shape *of, size_t row, size_t column, size_t count) {
  size_t end = row + TILE + of->ahead;
  if (end <= column) return 0;
  return end - column < count ? end - column : count;
}

/* s[TILE, BLOCK] = a . panels, for whole panels up to `count` columns. */
INLINE void scores(float *s, const float *a, size_t a_row, const float *panels,
                   size_t count, size_t width) {
  for (size_t n = 0; n < count; n += PANEL)
    sums(2, s + n, BLOCK, a, a_row, 1, panels + n * width, PANEL, 0, width, 0);
}

/* Which lanes from `column` on row `row` sees; of a block that all rows see, `all`. */
INLINE I visible(const int all, const Shape *of, size_t row, size_t column) {
  I lane;
  if (all) return (I){} - 1;
  UNROLL for (int i = 0; i < LANES; i++) lane[i] = i;
  ptrdiff_t many = (ptrdiff_t)(row + of->ahead + 1) - (ptrdiff_t)column;
  int32_t limit = many < 0 ? 0 : many < LANES ? (int32_t)many : LANES;
  return lane < limit;
}

INLINE float largest(V v) {
  float part[LANES];
  *(V *)part = v;
  UNROLL for (int n = LANES / 2; n > 0; n /= 2) {
    UNROLL for (int i = 0; i < n; i++) part[i] = part[i] > part[i + n] ? part[i] : part[i + n];
  }
  return part[0];
}

/* A tile of rows with a block of columns: y, l and m as they are with these, too. */
INLINE void tile_forward(const int all, const Shape *of, const float *q, size_t q_row, const float *panels,
                         const float *v, size_t v_row, float *y, float *l, float *m,
                         size_t row, size_t column, size_t count) {
  float s[TILE * BLOCK] __attribute__((aligned(64)));
  size_t whole = (count + PANEL - 1) / PANEL * PANEL;
  scores(s, q, q_row, panels, whole, of->width);
  for (int r = 0; r < TILE; r++) {
    float *these = s + r * BLOCK;
    V top = splat(-__builtin_inff());
    for (size_t n = 0; n < whole; n += LANES) {
      V value = *(V *)(these + n) * of->scale;
      value = chosen(visible(all, of, row + r, column + n), value, splat(-__builtin_inff()));
      *(V *)(these + n) = value;
      top = larger(value, top);
    }
    float before = m[r], after = largest(top);
    after = after > before ? after : before;
    V sum = {};
    for (size_t n = 0; n < whole; n += LANES) {
      V e = exponential(*(V *)(these + n) - after);
      *(V *)(these + n) = e;
      sum += e;
    }
    if (after > before && column) {
      float less = exponential(splat(before - after))[0];
      l[r] *= less;
      for (size_t n = 0; n < of->width; n += LANES) *(V *)(y + r * of->apart + n) *= less;
    }
    m[r] = after, l[r] += total(sum);
  }
  product(y, of->apart, s, BLOCK, 1, v, v_row, 0, count, of->width);
}

INLINE void clear(const Shape *of, float *rows, size_t count) {
  for (size_t r = 0; r < count; r++) {
    for (size_t n = 0; n < of->width; n += LANES) *(V *)(rows + r * of->apart + n) = (V){};
  }
}

static void forward(const Shape *of, const float *q, size_t q_row, const float *k,
                    size_t k_row, const float *v, size_t v_row, float *y, float *l,
                    float *m) {
  float panels[BLOCK * MOST_WIDTH] __attribute__((aligned(64)));
  clear(of, y, of->rows);
  for (size_t i = 0; i < of->rows; i++) l[i] = 0, m[i] = -__builtin_inff();
  for (size_t top = 0; top < of->rows; top += MANY) {
    size_t end = of->rows - top < MANY ? of->rows : top + MANY;
    for (size_t c = 0; c < of->columns && seen(of, end - TILE, c, 1); c += BLOCK) {
      size_t count = of->columns - c < BLOCK ? of->columns - c : BLOCK;
      packed(panels, k + c * k_row, k_row, count, of->width);
      for (size_t r = top; r < end; r += TILE) {
        size_t many = seen(of, r, c, count);
#define TILE_FORWARD(all) \
  tile_forward(all, of, q + r * q_row, q_row, panels, v + c * v_row, v_row, \
               y + r * of->apart, l + r, m + r, r, c, many)
        if (many && r + of->ahead >= c + BLOCK) TILE_FORWARD(1);
        else if (many) TILE_FORWARD(0);
#undef TILE_FORWARD
      }
    }
  }
}

/* e and ds of a tile of rows with a block of columns. */
INLINE void tile_backward(const int all, const Shape *of, const float *q, size_t q_row, const float *g,
                          size_t g_row, const float *ks, const float *vs, const float *m,
                          const float *d, float *e, float *ds, size_t row, size_t column,
                          size_t count) {
  size_t whole = (count + PANEL - 1) / PANEL * PANEL;
  scores(e, q, q_row, ks, whole, of->width);
  scores(ds, g, g_row, vs, whole, of->width);
  for (int r = 0; r < TILE; r++) {
    for (size_t n = 0; n < whole; n += LANES) {
      V *score = (V *)(e + r * BLOCK + n), *slope = (V *)(ds + r * BLOCK + n);
      V value = exponential(*score * of->scale - m[r]);
      *score = chosen(visible(all, of, row + r, column + n), value, (V){});
      value = (*slope + d[r]) * *score * of->by;
      *slope = chosen(visible(all, of, row + r, column + n), value, (V){});
    }
  }
}

static void backward(const Shape *of, const float *q, size_t q_row, const float *k,
                     size_t k_row, const float *v, size_t v_row, const float *m,
                     const float *g, size_t g_row, const float *d, float *dq, float *dk,
                     float *dv) {
  float ks[BLOCK * MOST_WIDTH] __attribute__((aligned(64)));
  float vs[BLOCK * MOST_WIDTH] __attribute__((aligned(64)));
  float e[DEEP * BLOCK] __attribute__((aligned(64)));
  float ds[DEEP * BLOCK] __attribute__((aligned(64)));
  size_t width = of->width, apart = of->apart;
  clear(of, dq, of->rows);
  clear(of, dk, of->columns);
  clear(of, dv, of->columns);
  for (size_t c = 0; c < of->columns; c += BLOCK) {
    size_t count = of->columns - c < BLOCK ? of->columns - c : BLOCK;
    packed(ks, k + c * k_row, k_row, count, width);
    packed(vs, v + c * v_row, v_row, count, width);
    for (size_t top = 0; top < of->rows; top += DEEP) {
      size_t deep = of->rows - top < DEEP ? of->rows - top : DEEP;
      size_t most = seen(of, top + deep - TILE, c, count);
      if (!most) continue;
      for (size_t r = 0; r < deep; r += TILE) {
        size_t row = top + r, many = seen(of, row, c, count);
        if (!many) continue;
#define TILE_BACKWARD(all) \
  tile_backward(all, of, q + row * q_row, q_row, g + row * g_row, g_row, ks, vs, m + row, \
                d + row, e + r * BLOCK, ds + r * BLOCK, row, c, many)
        if (row + of->ahead >= c + BLOCK) TILE_BACKWARD(1);
        else TILE_BACKWARD(0);
#undef TILE_BACKWARD
        product(dq + row * apart, apart, ds + r * BLOCK, BLOCK, 1, k + c * k_row, k_row, 0,
                many, width);
      }
      for (size_t n = 0; n < most; n += TILE) {
        size_t lies = c + n, first = 0; /* the first row that sees one of the columns */
        if (lies > top + of->ahead) first = lies - top - of->ahead;
        if (first >= deep) break;
        product(dv + lies * apart, apart, e + n, 1, BLOCK, g + top * g_row, g_row, first,
                deep, width);
        product(dk + lies * apart, apart, ds + n, 1, BLOCK, q + top * q_row, q_row, first,
                deep, width);
      }
    }
  }
}

INLINE float float_of(size_t bits) {
  union { uint32_t bits; float value; } both = {.bits = (uint32_t)bits};
  return both.value;
}

#define SHAPE size_t heads, size_t rows, size_t columns, size_t width, size_t ahead, \
              size_t scale, size_t by
#define PLACE(x) size_t x##_from, size_t x##_sequence, size_t x##_head, size_t x##_row
#define AT(x) (x + x##o + x##_from + b * x##_sequence + h * x##_head)
#define RESULT(x, count) (x + x##o + (b * (count) * heads + h) * width)
#define GIVEN Shape of = {rows, columns, width, ahead, heads * width, float_of(scale), \
                          float_of(by)}; \
              size_t b = part / heads, h = part % heads

void pcp_attention(const float *q, size_t qo, const float *k, size_t ko, const float *v,
                   size_t vo, float *y, size_t yo, float *l, size_t lo, float *m, size_t mo,
                   size_t part, SHAPE, PLACE(q), PLACE(k), PLACE(v)) {
  GIVEN;
  forward(&of, AT(q), q_row, AT(k), k_row, AT(v), v_row, RESULT(y, rows),
          l + lo + part * rows, m + mo + part * rows);
}

void pcp_attention_slopes(const float *q, size_t qo, const float *k, size_t ko,
                          const float *v, size_t vo, const float *m, size_t mo,
                          const float *g, size_t go, const float *d, size_t d0, float *dq,
                          size_t dqo, float *dk, size_t dko, float *dv, size_t dvo,
                          size_t part, SHAPE, PLACE(q), PLACE(k), PLACE(v), PLACE(g)) {
  GIVEN;
  backward(&of, AT(q), q_row, AT(k), k_row, AT(v), v_row, m + mo + part * rows, AT(g), g_row,
           d + d0 + part * rows, RESULT(dq, rows), RESULT(dk, columns), RESULT(dv, columns));
}
