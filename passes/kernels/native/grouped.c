/* Products of numbers of 8 bits with weights of 8 or of 4, which have a scale for each
   group of 32 along the depth:

       y[m, n] = sum over g of xs[m, g] * ws[n, g] * sum over k of x[m, g, k] * w[n, g, k]

   The inner sums are exact. Weights lie by panels of 16 columns:

       8 bits: [panel][group][8 quads][16 columns][4]
       4 bits: [panel][group][4][16 columns][4], quad j in the low halves and quad j + 4
               in the high ones, each number plus 8
       scales: [panel][group][16 columns]                                           */
#include "vector.h"

#define GROUP 32
#define COLUMNS 16
#define PARTS (COLUMNS / LANES)
#if defined(__AVX512VNNI__)
#define MOST_ROWS 8
#define EACH_QUAD UNROLL
#else
#define MOST_ROWS 2 /* sums of more would leave the registers */
#define EACH_QUAD
#endif
#define MOST_GROUPS 128 /* at a time */

typedef struct { I part[PARTS]; } Exact;

#if defined(__AVX512VNNI__)

/* It multiplies unsigned numbers with signed ones: weights are taken 128 or 8 higher,
   and as many times the sum of x less. */
#define HIGHER(bits) (bits == 8 ? 128 : 8)

INLINE __m512i weights(const int bits, const uint8_t *w, int quad) {
  if (bits == 8) return _mm512_xor_si512(_mm512_loadu_si512(w + 64 * quad),
                                         _mm512_set1_epi8((char)0x80));
  __m512i both = _mm512_loadu_si512(w + 64 * (quad % 4));
  if (quad >= 4) both = _mm512_srli_epi16(both, 4);
  return _mm512_and_si512(both, _mm512_set1_epi8(15));
}
INLINE Exact with_quad(Exact sum, __m512i w, const int8_t *x) {
  __m512i quad = _mm512_set1_epi32(*(const int32_t *)x);
  sum.part[0] = (I)_mm512_dpbusd_epi32((__m512i)sum.part[0], w, quad);
  return sum;
}

#else

#define HIGHER(bits) (bits == 8 ? 0 : 8)

typedef struct { I each[4][PARTS]; } Quads;

INLINE Quads weights(const int bits, const uint8_t *w, int quad) {
  Quads found;
  for (int part = 0; part < PARTS; part++) {
    I packed = *(const I *)(w + 64 * (bits == 8 ? quad : quad % 4) + 4 * LANES * part);
    UNROLL for (int i = 0; i < 4; i++) {
      if (bits == 8) found.each[i][part] = packed << (24 - 8 * i) >> 24;
      else found.each[i][part] = packed >> (8 * i + (quad >= 4 ? 4 : 0)) & 15;
    }
  }
  return found;
}
INLINE Exact with_quad(Exact sum, Quads w, const int8_t *x) {
  UNROLL for (int i = 0; i < 4; i++) {
    UNROLL for (int part = 0; part < PARTS; part++) sum.part[part] += w.each[i][part] * (int32_t)x[i];
  }
  return sum;
}

#endif

INLINE int32_t total_of_group(const int8_t *x) {
#if defined(__AVX2__)
  __m256i higher = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)x),
                                    _mm256_set1_epi8((char)0x80));
  __m256i four = _mm256_sad_epu8(higher, _mm256_setzero_si256());
  __m128i two = _mm_add_epi64(_mm256_castsi256_si128(four),
                              _mm256_extracti128_si256(four, 1));
  return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 2) - 128 * GROUP;
#else
  int32_t sum = 0;
  for (int k = 0; k < GROUP; k++) sum += x[k];
  return sum;
#endif
}

/* `many` rows of x with one panel, for the groups from `first` to `last`; `less` are the
   sums of x times what its weights are too high. */
INLINE void panel(const int bits, const int many, const int8_t *x, const float *xs,
                  const uint8_t *w, const float *ws, float *y, size_t columns,
                  size_t groups, size_t first, size_t last, const int32_t *less) {
  V sums[MOST_ROWS][PARTS];
  UNROLL for (int m = 0; m < many; m++) {
    UNROLL for (int part = 0; part < PARTS; part++)
      sums[m][part] = first ? *(const V *)(y + m * columns + part * LANES) : (V){};
  }
  for (size_t g = first; g < last; g++) {
    const uint8_t *block = w + g * (bits * GROUP * COLUMNS / 8);
    Exact exact[MOST_ROWS];
    UNROLL for (int m = 0; m < many; m++) {
      UNROLL for (int part = 0; part < PARTS; part++)
        exact[m].part[part] = (I){} - less[m * MOST_GROUPS + g - first];
    }
    EACH_QUAD for (int quad = 0; quad < GROUP / 4; quad++) {
      __builtin_prefetch(block + 4096 + 64 * quad);
      __auto_type these = weights(bits, block, quad);
      UNROLL for (int m = 0; m < many; m++)
        exact[m] = with_quad(exact[m], these, x + (m * groups + g) * GROUP + 4 * quad);
    }
    UNROLL for (int part = 0; part < PARTS; part++) {
      V scale = *(const V *)(ws + g * COLUMNS + part * LANES);
      UNROLL for (int m = 0; m < many; m++) {
        V value = __builtin_convertvector(exact[m].part[part], V);
        sums[m][part] += value * (scale * xs[m * groups + g]);
      }
    }
  }
  UNROLL for (int m = 0; m < many; m++) {
    UNROLL for (int part = 0; part < PARTS; part++)
      *(V *)(y + m * columns + part * LANES) = sums[m][part];
  }
}

/* The panels of one part of the columns, `many` rows at a time. */
INLINE void rows(const int bits, const int many, const int8_t *x, const float *xs,
                 const uint8_t *w, const float *ws, float *y, size_t begin, size_t end,
                 size_t panels, size_t groups) {
  for (size_t first = 0; first < groups; first += MOST_GROUPS) {
    size_t last = groups - first < MOST_GROUPS ? groups : first + MOST_GROUPS;
    int32_t less[MOST_ROWS * MOST_GROUPS];
    for (int m = 0; m < many; m++) {
      for (size_t g = first; g < last; g++) {
        int32_t sum = HIGHER(bits) ? total_of_group(x + (m * groups + g) * GROUP) : 0;
        less[m * MOST_GROUPS + g - first] = HIGHER(bits) * sum;
      }
    }
    for (size_t p = begin; p < end; p++)
      panel(bits, many, x, xs, w + p * groups * (bits * GROUP * COLUMNS / 8),
            ws + p * groups * COLUMNS, y + p * COLUMNS, panels * COLUMNS, groups, first,
            last, less);
  }
}

INLINE void grouped(const int bits, const int8_t *x, const float *xs, const uint8_t *w,
                    const float *ws, float *y, size_t part, size_t width, size_t count,
                    size_t panels, size_t groups) {
  size_t begin = part * width, end = begin + width < panels ? begin + width : panels;
  while (count) {
    size_t many = count < MOST_ROWS ? count : MOST_ROWS;
    switch (many) {
#define CASE(n) \
  case n: rows(bits, n, x, xs, w, ws, y, begin, end, panels, groups); break;
      CASE(1) CASE(2)
#if MOST_ROWS == 8
      CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#endif
#undef CASE
    }
    x += many * groups * GROUP, xs += many * groups, y += many * panels * COLUMNS;
    count -= many;
  }
}

#define ENTRY(name, bits) \
  void name(const int8_t *x, size_t xo, const float *xs, size_t xso, const uint8_t *w, \
            size_t wo, const float *ws, size_t wso, float *y, size_t yo, size_t part, \
            size_t width, size_t count, size_t panels, size_t groups) { \
    grouped(bits, x + xo, xs + xso, w + wo, ws + wso, y + yo, part, width, count, \
            panels, groups); \
  }
ENTRY(pcp_grouped_int8, 8)
ENTRY(pcp_grouped_int4, 4)
