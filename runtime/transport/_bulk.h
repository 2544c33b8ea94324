/* The checksum of bulk payloads, and the additions of the compiled loops.
 *
 * XXH3 of 64 bits with the default secret and no seed
 * (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), for inputs of more than 240 bytes.
 */
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_X86 1
#endif

enum { STRIPE = 64, PER_BLOCK = 16, SECRET = 192, LEAST = 241, PIECE = 256 << 10 };

static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c,
    0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb,
    0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97,
    0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83,
    0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26,
    0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
    0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

static const uint8_t *const last_key = secret + SECRET - STRIPE;

typedef struct {
    uint64_t acc[8], total;
    size_t in_block, pending;
    uint8_t tail[STRIPE], pend[STRIPE]; /* the last stripe read, and what follows it */
} Hash;

static const uint64_t P1 = 0x9E3779B185EBCA87u, P2 = 0xC2B2AE3D27D4EB4Fu,
                      P3 = 0x165667B19E3779F9u, P4 = 0x85EBCA77C2B2AE63u,
                      P5 = 0x27D4EB2F165667C5u;
static const uint32_t Q1 = 0x9E3779B1u, Q2 = 0x85EBCA77u, Q3 = 0xC2B2AE3Du;

static uint64_t read64(const uint8_t *at) /* little-endian, as numpy's data here */
{
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

/* `n` stripes, from one of `at` in its block on, which ends with its own step. */
typedef void (*Stripes)(uint64_t *acc, const uint8_t *in, size_t n, size_t at);

static void stripes_plain(uint64_t *acc, const uint8_t *in, size_t n, size_t at)
{
    for (; n--; in += STRIPE) {
        const uint8_t *key = secret + 8 * at;
        for (int i = 0; i < 8; i++) {
            uint64_t value = read64(in + 8 * i), mixed = value ^ read64(key + 8 * i);
            acc[i ^ 1] += value;
            acc[i] += (mixed & 0xFFFFFFFFu) * (mixed >> 32);
        }
        if (++at < PER_BLOCK)
            continue;
        at = 0;
        for (int i = 0; i < 8; i++)
            acc[i] = (acc[i] ^ (acc[i] >> 47) ^ read64(last_key + 8 * i)) * Q1;
    }
}

#ifdef HAVE_X86
#define STRIPE_256(k)                                                                \
    for (int i = 0; i < 2; i++) {                                                    \
        const __m256i *from = (const __m256i *)(in + STRIPE * (k));                  \
        const __m256i *keys = (const __m256i *)(secret + 8 * (at + (k)));            \
        __m256i value = _mm256_loadu_si256(from + i);                                \
        __m256i mixed = _mm256_xor_si256(value, _mm256_loadu_si256(keys + i));       \
        __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));     \
        __m256i swapped = _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2));      \
        sum[i] = _mm256_add_epi64(sum[i], _mm256_add_epi64(swapped, product));       \
    }

__attribute__((target("avx2"))) static void
stripes_avx2(uint64_t *acc, const uint8_t *in, size_t n, size_t at)
{
    const __m256i prime = _mm256_set1_epi64x(Q1);
    const __m256i *last = (const __m256i *)last_key;
    __m256i sum[2];
    memcpy(sum, acc, sizeof sum);
    while (n) {
        if (!at && n >= PER_BLOCK) {
#pragma GCC unroll 16
            for (int k = 0; k < PER_BLOCK; k++)
                STRIPE_256(k)
            in += STRIPE * PER_BLOCK;
            n -= PER_BLOCK;
        } else {
            STRIPE_256(0)
            in += STRIPE;
            n--;
            if (++at < PER_BLOCK)
                continue;
            at = 0;
        }
        for (int i = 0; i < 2; i++) {
            __m256i mixed = _mm256_xor_si256(sum[i], _mm256_srli_epi64(sum[i], 47));
            mixed = _mm256_xor_si256(mixed, _mm256_loadu_si256(last + i));
            __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
            sum[i] = _mm256_add_epi64(_mm256_mul_epu32(mixed, prime),
                                      _mm256_slli_epi64(high, 32));
        }
    }
    memcpy(acc, sum, sizeof sum);
}

#define STRIPE_512(k)                                                                \
    do {                                                                             \
        __m512i value = _mm512_loadu_si512(in + STRIPE * (k));                       \
        __m512i key = _mm512_loadu_si512(secret + 8 * (at + (k)));                   \
        __m512i mixed = _mm512_xor_si512(value, key);                                \
        __m512i product = _mm512_mul_epu32(mixed, _mm512_srli_epi64(mixed, 32));     \
        __m512i swapped = _mm512_shuffle_epi32(value, _MM_PERM_BADC);                \
        sum = _mm512_add_epi64(sum, _mm512_add_epi64(swapped, product));             \
    } while (0)

__attribute__((target("avx512f"))) static void
stripes_avx512(uint64_t *acc, const uint8_t *in, size_t n, size_t at)
{
    const __m512i prime = _mm512_set1_epi64(Q1), last = _mm512_loadu_si512(last_key);
    __m512i sum = _mm512_loadu_si512(acc);
    while (n) {
        if (!at && n >= PER_BLOCK) {
#pragma GCC unroll 16
            for (int k = 0; k < PER_BLOCK; k++)
                STRIPE_512(k);
            in += STRIPE * PER_BLOCK;
            n -= PER_BLOCK;
        } else {
            STRIPE_512(0);
            in += STRIPE;
            n--;
            if (++at < PER_BLOCK)
                continue;
            at = 0;
        }
        __m512i mixed = _mm512_xor_si512(sum, _mm512_srli_epi64(sum, 47));
        mixed = _mm512_xor_si512(mixed, last);
        __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
        sum = _mm512_add_epi64(_mm512_mul_epu32(mixed, prime),
                               _mm512_slli_epi64(high, 32));
    }
    _mm512_storeu_si512(acc, sum);
}
#endif

static Stripes stripes = stripes_plain;

static void consume(Hash *hash, const uint8_t *in, size_t n)
{
    stripes(hash->acc, in, n, hash->in_block);
    hash->in_block = (hash->in_block + n) % PER_BLOCK;
}

static void hash_reset(Hash *hash)
{
    const uint64_t first[8] = {Q3, P1, P2, P3, P4, Q2, P5, Q1};
    memset(hash, 0, sizeof *hash);
    memcpy(hash->acc, first, sizeof first);
}

/* A stripe is read only when more follows: the last one has another key. */
static void hash_update(Hash *hash, const uint8_t *in, size_t n)
{
    hash->total += n;
    if (hash->pending + n <= STRIPE) {
        memcpy(hash->pend + hash->pending, in, n);
        hash->pending += n;
        return;
    }
    if (hash->pending) {
        size_t fill = STRIPE - hash->pending;
        memcpy(hash->pend + hash->pending, in, fill);
        consume(hash, hash->pend, 1);
        memcpy(hash->tail, hash->pend, STRIPE);
        in += fill;
        n -= fill;
    }
    if (n > STRIPE) {
        size_t whole = (n - 1) / STRIPE;
        consume(hash, in, whole);
        in += whole * STRIPE;
        n -= whole * STRIPE;
        memcpy(hash->tail, in - STRIPE, STRIPE);
    }
    memcpy(hash->pend, in, n);
    hash->pending = n;
}

static uint64_t folded(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_digest(const Hash *hash)
{
    uint64_t acc[8], value = hash->total * P1;
    uint8_t last[STRIPE];
    size_t kept = STRIPE - hash->pending;
    memcpy(acc, hash->acc, sizeof acc);
    memcpy(last, hash->tail + hash->pending, kept);
    memcpy(last + kept, hash->pend, hash->pending);
    const uint8_t *end = secret + SECRET - STRIPE - 7;
    for (int i = 0; i < 8; i++) {
        uint64_t lane = read64(last + 8 * i), mixed = lane ^ read64(end + 8 * i);
        acc[i ^ 1] += lane;
        acc[i] += (mixed & 0xFFFFFFFFu) * (mixed >> 32);
    }
    for (int i = 0; i < 4; i++) {
        const uint8_t *key = secret + 11 + 16 * i;
        value += folded(acc[2 * i] ^ read64(key), acc[2 * i + 1] ^ read64(key + 8));
    }
    value ^= value >> 37;
    value *= 0x165667919E3779F9u;
    return value ^ (value >> 32);
}

/* Sums, of the element types whose numpy loop is one addition. */

typedef void (*Sum)(uint8_t *, const uint8_t *, const uint8_t *, size_t);

#define SUM(name, type, attribute)                                                   \
    attribute static void name(uint8_t *out, const uint8_t *a, const uint8_t *b,      \
                               size_t n)                                             \
    {                                                                                \
        type *to = (type *)out;                                                      \
        const type *x = (const type *)a, *y = (const type *)b;                       \
        _Pragma("GCC ivdep") /* `out` may be `a` or `b`, and overlaps neither */      \
        for (size_t i = 0; i < n; i++)                                               \
            to[i] = x[i] + y[i];                                                     \
    }
#define SUMS(suffix, attribute)                                                      \
    SUM(sum_f32##suffix, float, attribute)                                           \
    SUM(sum_f64##suffix, double, attribute)                                          \
    SUM(sum_i32##suffix, uint32_t, attribute)                                        \
    SUM(sum_i64##suffix, uint64_t, attribute)
SUMS(, )
static Sum sums[4] = {sum_f32, sum_f64, sum_i32, sum_i64};
#ifdef HAVE_X86
SUMS(_avx2, __attribute__((target("avx2"))))
static const Sum sums_avx2[4] = {sum_f32_avx2, sum_f64_avx2, sum_i32_avx2,
                                 sum_i64_avx2};
#endif

/* Copy past the cache, which has no room for the result and need not read it first. */
static void copy_past(uint8_t *to, const uint8_t *from, size_t n)
{
#ifdef HAVE_X86
    size_t odd = (size_t)(-(uintptr_t)to & 15);
    if (n > 64) {
        memcpy(to, from, odd);
        to += odd;
        from += odd;
        n -= odd;
        for (; n >= 64; n -= 64, to += 64, from += 64)
            for (int i = 0; i < 4; i++)
                _mm_stream_si128((__m128i *)to + i,
                                 _mm_loadu_si128((const __m128i *)from + i));
        _mm_sfence();
    }
#endif
    memcpy(to, from, n);
}

/* Choose the loops for this processor. */
static void choose_loops(void)
{
#ifdef HAVE_X86
    if (__builtin_cpu_supports("avx2")) {
        stripes = stripes_avx2;
        memcpy(sums, sums_avx2, sizeof sums);
    }
    if (__builtin_cpu_supports("avx512f"))
        stripes = stripes_avx512;
#endif
}

static Sum sum_of(int code, size_t *size)
{
    *size = code == 'd' || code == 'l' ? 8 : 4;
    return code == 'f' ? sums[0] : code == 'd' ? sums[1] : code == 'i' ? sums[2]
         : code == 'l' ? sums[3] : NULL;
}
