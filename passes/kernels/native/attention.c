/* Attention of f32 by blocks, and its derivative, for one head of one sequence at a time:

       e = exp(scale * q . k^T - m), m the largest of a row;  y = e . v;  l = sums of e
       ds = (g . v^T + d) * e * by;  dq = ds . k;  dk = ds^T . q;  dv = e^T . g

   Row r sees the columns up to r + ahead, the others are as if they were minus infinity;
   what no row of a block sees is left out. Besides there may be one number for each pair,
   that is added to its score, or stands in its place where it is not zero. A row of minus
   infinities alone is not a number, or, where it is LEVEL, as if all scores were zeros that
   have no slopes; its m stays minus infinity. All pairs of positions are nowhere in memory.
   The width is whole vectors. */
#include "vector.h"

#define PANEL (2 * LANES)
#define TILE (REGISTERS == 32 ? 8 : 4)
#define BLOCK 64       /* columns at a time */
#define MANY 128       /* rows for which columns are packed once */
#define DEEP 32        /* rows whose sums go into a column at once */
#define MOST_WIDTH 128

enum { ADDED = 1, IN_PLACE = 2, LEVEL = 4 };

typedef struct { size_t rows, columns, width, ahead; float scale, by; int kind; } Shape;

/* Rows of floats, `row` apart; those of pairs have columns `column` apart, 0 or 1. */
typedef struct { const float *at; size_t row, column; } Rows;
typedef struct { float *at; size_t row; } Made;

INLINE V splat(float x) { return (V){} + x; }

INLINE V chosen(I mask, V a, V b) { return (V)((mask & (I)a) | (~mask & (I)b)); }

INLINE V larger(V a, V b) { return chosen(a > b, a, b); }

/* Never part of one operation with the next: what is computed twice is twice the same. */
INLINE V rounded(V x) { return __builtin_assoc_barrier(x); }

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

/* c[tile, parts] (+)= a . b over k: a by its strides, b row by row. */
INLINE void sums(const int tile, const int parts, float *c, size_t c_row, const float *a, size_t a_row,
                 size_t a_step, const float *b, size_t b_row, size_t first, size_t last,
                 const int onto) {
  V sum[TILE][2];
  UNROLL for (int m = 0; m < tile; m++) {
    UNROLL for (int n = 0; n < parts; n++)
      sum[m][n] = onto ? *(const V *)(c + m * c_row + n * LANES) : (V){};
  }
  for (size_t k = first; k < last; k++) {
    V right[2];
    UNROLL for (int n = 0; n < parts; n++) right[n] = *(const V *)(b + k * b_row + n * LANES);
    UNROLL for (int m = 0; m < tile; m++) {
      float left = a[m * a_row + k * a_step];
      UNROLL for (int n = 0; n < parts; n++) sum[m][n] += left * right[n];
    }
  }
  UNROLL for (int m = 0; m < tile; m++) {
    UNROLL for (int n = 0; n < parts; n++) *(V *)(c + m * c_row + n * LANES) = sum[m][n];
  }
}

/* The same for all columns of c, whole vectors. */
INLINE void product(const int tile, float *c, size_t c_row, const float *a, size_t a_row, size_t a_step,
                    const float *b, size_t b_row, size_t first, size_t last, size_t width) {
  size_t n = 0;
  for (; n + PANEL <= width; n += PANEL)
    sums(tile, 2, c + n, c_row, a, a_row, a_step, b + n, b_row, first, last, 1);
  for (; n < width; n += LANES)
    sums(tile, 1, c + n, c_row, a, a_row, a_step, b + n, b_row, first, last, 1);
}

/* Columns of a block as panels [width][PANEL]; zeros behind the last one. */
static void packed(float *into, Rows from, size_t count, size_t width) {
  for (size_t t = 0; t < (count + PANEL - 1) / PANEL * PANEL; t += LANES) {
    float *panel = into + t / PANEL * PANEL * width + t % PANEL;
    for (size_t d = 0; d < width; d += LANES) {
      V square[LANES];
      UNROLL for (int i = 0; i < LANES; i++)
        square[i] = t + i < count ? *(const V *)(from.at + (t + i) * from.row + d) : (V){};
      transpose(square);
      UNROLL for (int i = 0; i < LANES; i++) *(V *)(panel + (d + i) * PANEL) = square[i];
    }
  }
}

/* How many of `count` columns from `column` on the rows before `end` need. */
INLINE size_t seen(const Shape *of, size_t end, size_t column, size_t count) {
  end += of->ahead;
  if (end <= column) return 0;
  return end - column < count ? end - column : count;
}

/* s[tile, BLOCK] = a . panels, for whole panels up to `count` columns. */
INLINE void scores(const int tile, float *s, Rows a, const float *panels, size_t count,
                   size_t width) {
  for (size_t n = 0; n < count; n += PANEL)
    sums(tile, 2, s + n, BLOCK, a.at, a.row, 1, panels + n * width, PANEL, 0, width, 0);
}

/* Which lanes from `column` on row `row` sees; of a block that all rows see, `all`. */
INLINE I visible(const int all, const Shape *of, size_t row, size_t column) {
  I lane;
  if (all) return (I){} - 1;
  UNROLL for (int i = 0; i < LANES; i++) lane[i] = i;
  size_t end = row + of->ahead + 1 < of->columns ? row + of->ahead + 1 : of->columns;
  ptrdiff_t many = (ptrdiff_t)end - (ptrdiff_t)column;
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

/* The numbers of a row's pairs from a column on; zeros behind the last one. */
static V paired(const Shape *of, const float *row, size_t step, size_t column) {
  V some = {};
  if (step == 0) return splat(*row);
  if (column + LANES <= of->columns) return *(const V *)(row + column);
  for (size_t i = 0; column + i < of->columns; i++) some[i] = row[column + i];
  return some;
}

/* Scores with the pairs' numbers, scaled. */
static void with_pairs(const Shape *of, float *s, Rows pairs, size_t tile, size_t row,
                       size_t column, size_t whole) {
  for (size_t r = 0; r < tile; r++) {
    for (size_t n = 0; n < whole; n += LANES) {
      V *at = (V *)(s + r * BLOCK + n), scaled = rounded(*at * of->scale);
      V number = paired(of, pairs.at + (row + r) * pairs.row, pairs.column, column + n);
      if (of->kind & ADDED) *at = scaled + number;
      else *at = chosen(number != 0.0f, number, scaled);
    }
  }
}

/* Zero where a number stands in a score's place: the score counts for nothing. */
static void without_pairs(const Shape *of, float *ds, Rows pairs, size_t tile, size_t row,
                          size_t column, size_t whole) {
  for (size_t r = 0; r < tile; r++) {
    for (size_t n = 0; n < whole; n += LANES) {
      V *at = (V *)(ds + r * BLOCK + n);
      V number = paired(of, pairs.at + (row + r) * pairs.row, pairs.column, column + n);
      *at = chosen(number != 0.0f, (V){}, *at);
    }
  }
}

/* A tile of rows with a block of columns: y, l and m as they are with these, too. */
INLINE void tile_forward(const int tile, const int all, const Shape *of, Rows q,
                         const float *panels, Rows v, Rows pairs, Made y, float *l,
                         float *m, size_t row, size_t column, size_t count) {
  float s[TILE * BLOCK] __attribute__((aligned(64)));
  const float low = -__builtin_inff();
  size_t whole = (count + PANEL - 1) / PANEL * PANEL;
  float scale = of->scale;
  scores(tile, s, q, panels, whole, of->width);
  if (of->kind & (ADDED | IN_PLACE))
    with_pairs(of, s, pairs, tile, row, column, whole), scale = 1;
  for (int r = 0; r < tile; r++) {
    float *these = s + r * BLOCK;
    V top = splat(low);
    for (size_t n = 0; n < whole; n += LANES) {
      V value = rounded(*(V *)(these + n) * scale);
      value = chosen(visible(all, of, row + r, column + n), value, splat(low));
      *(V *)(these + n) = value;
      top = larger(value, top);
    }
    float before = m[r], after = largest(top);
    after = after > before ? after : before;
    float base = after == low ? 0 : after;
    V sum = {};
    for (size_t n = 0; n < whole; n += LANES) {
      V e = exponential(*(V *)(these + n) - base);
      *(V *)(these + n) = e;
      sum += e;
    }
    if (after > before && column) {
      float less = exponential(splat(before - after))[0];
      l[r] *= less;
      for (size_t n = 0; n < of->width; n += LANES) *(V *)(y.at + r * y.row + n) *= less;
    }
    m[r] = after, l[r] += total(sum);
  }
  product(tile, y.at, y.row, s, BLOCK, 1, v.at, v.row, 0, count, of->width);
}

INLINE void clear(Made of, size_t count, size_t width) {
  for (size_t r = 0; r < count; r++) {
    for (size_t n = 0; n < width; n += LANES) *(V *)(of.at + r * of.row + n) = (V){};
  }
}

/* Onto one row, all of these. */
static void add(float *onto, Rows of, size_t count, size_t width) {
  for (size_t r = 0; r < count; r++) {
    for (size_t n = 0; n < width; n += LANES) *(V *)(onto + n) += *(const V *)(of.at + r * of.row + n);
  }
}

INLINE Rows from(Rows of, size_t row) {
  of.at += row * of.row;
  return of;
}

INLINE Made upon(Made of, size_t row) {
  of.at += row * of.row;
  return of;
}

/* Whether the rows from `row` on see all of a whole block. */
INLINE int is_all(const Shape *of, size_t row, size_t column) {
  return row + of->ahead + 1 >= column + BLOCK && column + BLOCK <= of->columns;
}

static void forward(const Shape *of, Rows q, Rows k, Rows v, Rows pairs, Made y, float *l,
                    float *m) {
  float panels[BLOCK * MOST_WIDTH] __attribute__((aligned(64)));
  clear(y, of->rows, of->width);
  for (size_t i = 0; i < of->rows; i++) l[i] = 0, m[i] = -__builtin_inff();
  for (size_t top = 0; top < of->rows; top += MANY) {
    size_t end = of->rows - top < MANY ? of->rows : top + MANY;
    for (size_t c = 0; c < of->columns && seen(of, end, c, 1); c += BLOCK) {
      size_t count = of->columns - c < BLOCK ? of->columns - c : BLOCK, r = top;
      packed(panels, from(k, c), count, of->width);
#define TILE_FORWARD(tile, all) \
  tile_forward(tile, all, of, from(q, r), panels, from(v, c), pairs, upon(y, r), l + r, \
               m + r, r, c, many)
      for (; r + TILE <= end; r += TILE) {
        size_t many = seen(of, r + TILE, c, count);
        if (many && is_all(of, r, c)) TILE_FORWARD(TILE, 1);
        else if (many) TILE_FORWARD(TILE, 0);
      }
      for (; r < end; r++) {
        size_t many = seen(of, r + 1, c, count);
        if (many) TILE_FORWARD(1, 0);
      }
#undef TILE_FORWARD
    }
  }
  for (size_t r = 0; r < of->rows; r++) { /* rows of nothing but minus infinities */
    float none = __builtin_nanf("");
    if (l[r] != l[r]) m[r] = none;
    if (l[r] != 0) continue;
    if (of->kind & LEVEL) {
      l[r] = (float)of->columns;
      add(y.at + r * y.row, v, of->columns, of->width);
      continue;
    }
    l[r] = m[r] = none;
    for (size_t n = 0; n < of->width; n += LANES) *(V *)(y.at + r * y.row + n) = splat(none);
  }
}

INLINE int is_level(const Shape *of, float m) {
  return of->kind & LEVEL && m == -__builtin_inff();
}

/* e and ds of a tile of rows with a block of columns. */
INLINE void tile_backward(const int tile, const int all, const Shape *of, Rows q, Rows g,
                          const float *ks, const float *vs, Rows pairs, const float *m,
                          const float *d, float *e, float *ds, size_t row, size_t column,
                          size_t count) {
  size_t whole = (count + PANEL - 1) / PANEL * PANEL;
  float scale = of->scale;
  scores(tile, e, q, ks, whole, of->width);
  scores(tile, ds, g, vs, whole, of->width);
  if (of->kind & (ADDED | IN_PLACE))
    with_pairs(of, e, pairs, tile, row, column, whole), scale = 1;
  for (int r = 0; r < tile; r++) {
    if (is_level(of, m[r])) { /* see `backward` */
      for (size_t n = 0; n < whole; n += LANES)
        *(V *)(e + r * BLOCK + n) = *(V *)(ds + r * BLOCK + n) = (V){};
      continue;
    }
    for (size_t n = 0; n < whole; n += LANES) {
      V *score = (V *)(e + r * BLOCK + n), *slope = (V *)(ds + r * BLOCK + n);
      V value = exponential(rounded(*score * scale) - m[r]);
      *score = chosen(visible(all, of, row + r, column + n), value, (V){});
      value = (*slope + d[r]) * *score * of->by;
      *slope = chosen(visible(all, of, row + r, column + n), value, (V){});
    }
  }
  if (of->kind & IN_PLACE) without_pairs(of, ds, pairs, tile, row, column, whole);
}

/* Rows that are level weigh all columns alike. */
static void level_backward(const Shape *of, const float *m, Rows g, Made dv) {
  float sum[MOST_WIDTH] __attribute__((aligned(64)));
  int any = 0;
  clear((Made){sum, 0}, 1, of->width);
  for (size_t r = 0; r < of->rows; r++) {
    if (is_level(of, m[r])) any = 1, add(sum, from(g, r), 1, of->width);
  }
  if (!any) return;
  for (size_t c = 0; c < of->columns; c++)
    add(dv.at + c * dv.row, (Rows){sum, 0, 0}, 1, of->width);
}

static void backward(const Shape *of, Rows q, Rows k, Rows v, Rows pairs, const float *m,
                     Rows g, const float *d, Made dq, Made dk, Made dv) {
  float ks[BLOCK * MOST_WIDTH] __attribute__((aligned(64)));
  float vs[BLOCK * MOST_WIDTH] __attribute__((aligned(64)));
  float e[DEEP * BLOCK] __attribute__((aligned(64)));
  float ds[DEEP * BLOCK] __attribute__((aligned(64)));
  size_t width = of->width;
  clear(dq, of->rows, width);
  clear(dk, of->columns, width);
  clear(dv, of->columns, width);
  for (size_t c = 0; c < of->columns; c += BLOCK) {
    size_t count = of->columns - c < BLOCK ? of->columns - c : BLOCK;
    packed(ks, from(k, c), count, width);
    packed(vs, from(v, c), count, width);
    for (size_t top = 0; top < of->rows; top += DEEP) {
      size_t deep = of->rows - top < DEEP ? of->rows - top : DEEP;
      size_t most = seen(of, top + deep, c, count), r = 0, n = 0;
      if (!most) continue;
#define TILE_BACKWARD(tile, all) \
  do { \
    tile_backward(tile, all, of, from(q, row), from(g, row), ks, vs, pairs, m + row, d + row, \
                  e + r * BLOCK, ds + r * BLOCK, row, c, many); \
    product(tile, dq.at + row * dq.row, dq.row, ds + r * BLOCK, BLOCK, 1, k.at + c * k.row, \
            k.row, 0, many, width); \
  } while (0)
      for (; r + TILE <= deep; r += TILE) {
        size_t row = top + r, many = seen(of, row + TILE, c, count);
        if (many && is_all(of, row, c)) TILE_BACKWARD(TILE, 1);
        else if (many) TILE_BACKWARD(TILE, 0);
      }
      for (; r < deep; r++) {
        size_t row = top + r, many = seen(of, row + 1, c, count);
        if (many) TILE_BACKWARD(1, 0);
      }
#undef TILE_BACKWARD
/* The first of the rows that sees one of the columns. */
#define FIRST(n) (c + (n) > top + of->ahead ? c + (n) - top - of->ahead : 0)
#define COLUMNS(tile) \
  do { \
    size_t lies = c + n, first = FIRST(n); \
    product(tile, dv.at + lies * dv.row, dv.row, e + n, 1, BLOCK, g.at + top * g.row, g.row, \
            first, deep, width); \
    product(tile, dk.at + lies * dk.row, dk.row, ds + n, 1, BLOCK, q.at + top * q.row, q.row, \
            first, deep, width); \
  } while (0)
      for (; n < most && n + TILE <= count; n += TILE) {
        if (FIRST(n) >= deep) break;
        COLUMNS(TILE);
      }
      for (; n < most && FIRST(n) < deep; n++) COLUMNS(1);
#undef COLUMNS
#undef FIRST
    }
  }
  if (of->kind & LEVEL) level_backward(of, m, g, dv);
}

INLINE float float_of(size_t bits) {
  union { uint32_t bits; float value; } both = {.bits = (uint32_t)bits};
  return both.value;
}

/* A part is one of the outer times `middle` times `inner` ones. */
#define SHAPE size_t middle, size_t inner, size_t rows, size_t columns, size_t width, \
              size_t ahead, size_t scale, size_t by, size_t kind
#define PLACE(x) size_t x##_from, size_t x##_outer, size_t x##_middle, size_t x##_inner, \
                 size_t x##_row
#define AT(x) (x + x##o + x##_from + part / (middle * inner) * x##_outer + \
                   part / inner % middle * x##_middle + part % inner * x##_inner)
#define READ(x) ((Rows){AT(x), x##_row, 1})
#define PAIRS ((Rows){AT(p), p_row, p_column})
#define MADE(x) ((Made){AT(x), x##_row})
#define GIVEN Shape of = {rows, columns, width, ahead, float_of(scale), float_of(by), (int)kind}

void pcp_attention(const float *q, size_t qo, const float *k, size_t ko, const float *v,
                   size_t vo, const float *p, size_t po, float *y, size_t yo, float *l,
                   size_t lo, float *m, size_t mo, size_t part, SHAPE, PLACE(q), PLACE(k),
                   PLACE(v), PLACE(p), size_t p_column, PLACE(y)) {
  GIVEN;
  forward(&of, READ(q), READ(k), READ(v), PAIRS, MADE(y), l + lo + part * rows,
          m + mo + part * rows);
}

void pcp_attention_slopes(const float *q, size_t qo, const float *k, size_t ko,
                          const float *v, size_t vo, const float *p, size_t po,
                          const float *m, size_t mo, const float *g, size_t go,
                          const float *d, size_t d0, float *dq, size_t dqo, float *dk,
                          size_t dko, float *dv, size_t dvo, size_t part, SHAPE, PLACE(q),
                          PLACE(k), PLACE(v), PLACE(p), size_t p_column, PLACE(g), PLACE(dq),
                          PLACE(dk), PLACE(dv)) {
  GIVEN;
  backward(&of, READ(q), READ(k), READ(v), PAIRS, m + mo + part * rows, READ(g),
           d + d0 + part * rows, MADE(dq), MADE(dk), MADE(dv));
}
