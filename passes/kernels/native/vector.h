/* Vectors of f32 as wide as the registers of the instruction set that is compiled for. */
#include <stddef.h>
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#define REGISTERS 32
#elif defined(__AVX__)
#define LANES 8
#define REGISTERS 16
#elif defined(__aarch64__)
#define LANES 4
#define REGISTERS 32
#else
#define LANES 4
#define REGISTERS 16
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef float V __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t I __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t H __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* Square: stage by stage, rows i and i + LANES / 2 are interleaved. */
INLINE void transpose(V rows[LANES]) {
  V next[LANES];
  UNROLL for (int stage = 1; stage < LANES; stage *= 2) {
    UNROLL for (int i = 0; i < LANES / 2; i++) {
      V a = rows[i], b = rows[i + LANES / 2];
#if LANES == 16
      next[2 * i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5,
                                            21, 6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12,
                                                28, 13, 29, 14, 30, 15, 31);
#elif LANES == 8
      next[2 * i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
      next[2 * i] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      next[2 * i + 1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
    }
    UNROLL for (int i = 0; i < LANES; i++) rows[i] = next[i];
  }
}

/* By halves, as other code adds a vector. */
INLINE float total(V v) {
  float part[LANES];
  *(V *)part = v;
  UNROLL for (int n = LANES / 2; n > 0; n /= 2) {
    UNROLL for (int i = 0; i < n; i++) part[i] += part[i + n];
  }
  return part[0];
}

/* Weights in memory as f32: what bf16 and f16 hold, exactly. */

INLINE V load_f32(const float *p) { return *(const V *)p; }
INLINE float one_f32(const float *p) { return *p; }

INLINE V load_bf16(const uint16_t *p) {
#if defined(__AVX512F__)
  __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
  return (V)_mm512_slli_epi32(bits, 16);
#elif defined(__AVX2__)
  __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
  return (V)_mm256_slli_epi32(bits, 16);
#else
  return (V)(__builtin_convertvector(*(const H *)p, I) << 16);
#endif
}
INLINE float one_bf16(const uint16_t *p) {
  union { uint32_t bits; float value; } it = {(uint32_t)*p << 16};
  return it.value;
}

/* The exponent's bias is 15 there and 127 here, all ones in it stay that. Below 2^-14 a
   number is a whole one times 2^-24: as f32's own numbers below 2^-126, which IREE's
   threads take for zero, its bits must not be multiplied. */
INLINE float one_f16(const uint16_t *p) {
  uint32_t bits = *p, exponent = bits & 0x7c00, sign = (bits & 0x8000) << 16;
  union { uint32_t bits; float value; } it = {((bits & 0x7fff) << 13) + (112u << 23)};
  if (exponent == 0x7c00) it.bits |= 0x7f800000;
  if (exponent == 0) it.value = (float)(int32_t)(bits & 0x3ff) * 0x1p-24f;
  it.bits |= sign;
  return it.value;
}
INLINE V load_f16(const uint16_t *p) {
#if defined(__AVX512F__)
  return (V)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__F16C__)
  return (V)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
  I bits = __builtin_convertvector(*(const H *)p, I), exponent = bits & 0x7c00;
  I value = ((bits & 0x7fff) << 13) + (112 << 23);
  I special = (exponent == 0x7c00) & 0x7f800000, small = exponent == 0;
  I least = (I)(__builtin_convertvector(bits & 0x3ff, V) * 0x1p-24f);
  return (V)((~small & (value | special)) | (small & least) | (bits & 0x8000) << 16);
#endif
}
