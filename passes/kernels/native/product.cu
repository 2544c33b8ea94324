// C[z] = A[z] . B[z] in f32, by tensor cores. See passes/kernels/cuda_products.py.
//
// A is M x K with K or M contiguous, B is K x N with N or K contiguous, rows `lda` and
// `ldb` elements apart; C is dense. With a `whole` depth above 0 the z are parts of one
// product, K deep each and the last one what is left. A block of threads makes a tile of C; the tiles of
// A and B come by cp.async, several ahead. f32 operands are split in two TF32 numbers
// each, and three of the four products are summed (the fourth is below 2^-22 of the
// first): the sum over a tile starts from zero and is added in f32, since the tensor
// cores cut off what does not fit.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace {

__device__ __forceinline__ uint32_t shared_address(const void *p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

template <int BYTES>
__device__ __forceinline__ void copy_async(void *to, const void *from, int bytes) {
  uint32_t address = shared_address(to);
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address),
                 "l"(from), "r"(bytes));
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address),
                 "l"(from), "r"(bytes));
}

__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;"); }

template <int LEFT> __device__ __forceinline__ void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT));
}

// A tile of OUTER x INNER elements in memory order, to rows of STRIDE elements. What
// lies outside of the matrix is zero.
template <typename T, int OUTER, int INNER, int STRIDE, int THREADS>
__device__ __forceinline__ void fetch(T *to, const T *from, int64_t ld, int outer,
                                      int inner, int outers, int inners, bool wide) {
  constexpr int V = 16 / sizeof(T);
  constexpr int CHUNKS = OUTER * INNER / V;
  static_assert(CHUNKS % THREADS == 0);
#pragma unroll
  for (int i = 0; i < CHUNKS / THREADS; ++i) {
    int chunk = threadIdx.x + i * THREADS;
    int o = chunk / (INNER / V), n = chunk % (INNER / V) * V;
    int left = outer + o < outers ? min(max(inners - inner - n, 0), V) : 0;
    T *target = to + o * STRIDE + n;
    const T *source = from + (outer + o) * ld + inner + n;
    if (wide) {
      copy_async<16>(target, left ? source : from, left * int(sizeof(T)));
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int e = 0; e < V; ++e)
        copy_async<4>(target + e, e < left ? source + e : from, e < left ? 4 : 0);
    } else {
#pragma unroll
      for (int e = 0; e < V; ++e) target[e] = e < left ? source[e] : T(0.f);
    }
  }
}

constexpr uint32_t INFINITE = 0x7f800000, TF32 = 0xffffe000, HALF = 0x1000;
constexpr uint32_t RARE = 0x7f7ff000;  // what rounding makes infinite, and above

// x as a sum of two TF32 numbers, `big` to nearest; the tensor cores cut off `small`.
__device__ __forceinline__ void split(float x, uint32_t &big, uint32_t &small) {
  big = (__float_as_uint(x) + HALF) & TF32;
  small = __float_as_uint(x - __uint_as_float(big));
}

// The same of any x. What is not finite is all in `small`, where there is one, since
// infinity times a `small` of 0 is no number.
template <int PASSES>
__device__ __forceinline__ void split_rare(float x, uint32_t &big, uint32_t &small) {
  uint32_t bits = __float_as_uint(x);
  big = (bits & ~(1u << 31)) >= RARE ? bits & TF32 : (bits + HALF) & TF32;
  if ((bits & INFINITE) == INFINITE) big = PASSES == 3 ? 0 : bits;
  small = __float_as_uint(x - __uint_as_float(big));
}

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <typename T>
__device__ __forceinline__ void multiply_halves(float (&c)[4], const uint32_t (&a)[4],
                                                const uint32_t (&b)[2]) {
  if constexpr (sizeof(T) == 2 && __is_same(T, __nv_bfloat16))
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], const void *row) {
  uint32_t address = shared_address(row);
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

// AT: A has M contiguous. BT: B has K contiguous. PASSES: 3, or 1 for TF32 alone.
template <typename T, bool AT, bool BT, int BM, int BN, int BK, int STAGES, int WM,
          int WN, int PASSES>
__device__ void product(const T *a, const T *b, float *c, int M, int N, int K, int lda,
                        int ldb, int next_a, int next_b, int whole) {
  constexpr int THREADS = BM / WM * (BN / WN) * 32;
  // Rows such that what a warp reads at once lies in different banks.
  constexpr int PAD_K = 8, PAD = sizeof(T) == 4 ? 4 : 8;
  constexpr int SA = AT ? BM + PAD : BK + PAD_K, SB = BT ? BK + PAD_K : BN + PAD;
  constexpr int A_TILE = (AT ? BK : BM) * SA, B_TILE = (BT ? BN : BK) * SB;
  constexpr int MT = WM / 16, NT = WN / 8;
  extern __shared__ __align__(16) unsigned char memory[];
  T *as = reinterpret_cast<T *>(memory), *bs = as + STAGES * A_TILE;

  if (whole) K = min(K, whole - int(blockIdx.z) * K);
  a += int64_t(blockIdx.z) * next_a;
  b += int64_t(blockIdx.z) * next_b;
  c += int64_t(blockIdx.z) * M * N;
  constexpr int V = 16 / sizeof(T);
  bool wide_a = lda % V == 0 && reinterpret_cast<uintptr_t>(a) % 16 == 0;
  bool wide_b = ldb % V == 0 && reinterpret_cast<uintptr_t>(b) % 16 == 0;
  int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int wm = warp % (BM / WM) * WM, wn = warp / (BM / WM) * WN;
  int g = lane / 4, t = lane % 4;

  auto fetch_tile = [&](int tile) {
    int slot = tile % STAGES, k0 = tile * BK;
    T *at = as + slot * A_TILE, *bt = bs + slot * B_TILE;
    if constexpr (AT)
      fetch<T, BK, BM, SA, THREADS>(at, a, lda, k0, m0, K, M, wide_a);
    else
      fetch<T, BM, BK, SA, THREADS>(at, a, lda, m0, k0, M, K, wide_a);
    if constexpr (BT)
      fetch<T, BN, BK, SB, THREADS>(bt, b, ldb, n0, k0, N, K, wide_b);
    else
      fetch<T, BK, BN, SB, THREADS>(bt, b, ldb, k0, n0, K, N, wide_b);
  };

  float sum[MT][NT][4] = {};
  int tiles = (K + BK - 1) / BK;
#pragma unroll
  for (int i = 0; i < STAGES - 1; ++i) {
    if (i < tiles) fetch_tile(i);
    commit();
  }
  for (int tile = 0; tile < tiles; ++tile) {
    wait<STAGES - 2>();
    __syncthreads();
    if (tile + STAGES - 1 < tiles) fetch_tile(tile + STAGES - 1);
    commit();
    const T *at = as + tile % STAGES * A_TILE, *bt = bs + tile % STAGES * B_TILE;
    if constexpr (sizeof(T) == 4) {
      float part[MT][NT][4] = {};
      // The k of a tile are taken in another order than they lie in, the same for A and
      // B: a thread has two neighbours, which are one load where K is contiguous.
#pragma unroll
      for (int k = 0; k < BK; k += 8) {
        uint32_t a_big[MT][4], a_small[MT][4], b_big[NT][2], b_small[NT][2];
        uint32_t largest = 0;
        auto load = [&](auto part_of) {
#pragma unroll
          for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              int m = wm + i * 16 + g + half * 8, kk = k + 2 * t;
              float2 x = AT ? make_float2(at[kk * SA + m], at[(kk + 1) * SA + m])
                            : *reinterpret_cast<const float2 *>(at + m * SA + kk);
              part_of(x.x, a_big[i][half], a_small[i][half]);
              part_of(x.y, a_big[i][half + 2], a_small[i][half + 2]);
            }
#pragma unroll
          for (int j = 0; j < NT; ++j) {
            int n = wn + j * 8 + g, kk = k + 2 * t;
            float2 x = BT ? *reinterpret_cast<const float2 *>(bt + n * SB + kk)
                          : make_float2(bt[kk * SB + n], bt[(kk + 1) * SB + n]);
            part_of(x.x, b_big[j][0], b_small[j][0]);
            part_of(x.y, b_big[j][1], b_small[j][1]);
          }
        };
        load([&](float x, uint32_t &big, uint32_t &small) {
          split(x, big, small);
          largest = max(largest, __float_as_uint(x) << 1);
        });
        if (largest >= RARE << 1) load(split_rare<PASSES>);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
          for (int j = 0; j < NT; ++j) {
            if constexpr (PASSES == 3) {
              multiply(part[i][j], a_small[i], b_big[j]);
              multiply(part[i][j], a_big[i], b_small[j]);
            }
            multiply(part[i][j], a_big[i], b_big[j]);
          }
      }
#pragma unroll
      for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sum[i][j][e] += part[i][j][e];
    } else {
      int row = lane % 8, which = lane / 8;  // the row of a matrix that this lane names
#pragma unroll
      for (int k = 0; k < BK; k += 16) {
        uint32_t a_part[MT][4], b_part[NT][2];
#pragma unroll
        for (int i = 0; i < MT; ++i) {
          int m = wm + i * 16 + which % 2 * 8, kk = k + which / 2 * 8;
          load_matrices<AT>(a_part[i], AT ? at + (kk + row) * SA + m
                                          : at + (m + row) * SA + kk);
        }
#pragma unroll
        for (int j = 0; j < NT; j += 2) {
          int n = wn + j * 8 + which / 2 * 8, kk = k + which % 2 * 8;
          uint32_t four[4];
          load_matrices<!BT>(four, BT ? bt + (n + row) * SB + kk
                                      : bt + (kk + row) * SB + n);
          b_part[j][0] = four[0], b_part[j][1] = four[1];
          b_part[j + 1][0] = four[2], b_part[j + 1][1] = four[3];
        }
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
          for (int j = 0; j < NT; ++j)
            multiply_halves<T>(sum[i][j], a_part[i], b_part[j]);
      }
    }
  }
  bool pairs = N % 2 == 0 && reinterpret_cast<uintptr_t>(c) % 8 == 0;
#pragma unroll
  for (int i = 0; i < MT; ++i)
#pragma unroll
    for (int j = 0; j < NT; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int m = m0 + wm + i * 16 + g + half * 8, n = n0 + wn + j * 8 + 2 * t;
        if (m >= M) continue;
        float *place = c + int64_t(m) * N + n;
        float x = sum[i][j][half * 2], y = sum[i][j][half * 2 + 1];
        if (pairs && n + 1 < N) {
          *reinterpret_cast<float2 *>(place) = make_float2(x, y);
        } else {
          if (n < N) place[0] = x;
          if (n + 1 < N) place[1] = y;
        }
      }
}

}  // namespace

#define KERNEL(NAME, T, AT, BT, BM, BN, BK, STAGES, WM, WN, PASSES, BLOCKS)           \
  extern "C" __global__ void __launch_bounds__(BM / WM *(BN / WN) * 32,               \
                                               BLOCKS)                                \
      NAME(const T *a, const T *b, float *c, int M, int N, int K, int lda, int ldb,   \
           int next_a, int next_b, int whole) {                                       \
    product<T, AT, BT, BM, BN, BK, STAGES, WM, WN, PASSES>(                           \
        a, b, c, M, N, K, lda, ldb, next_a, next_b, whole);                           \
  }
#define FORMS(NAME, T, BM, BN, BK, STAGES, WM, WN, PASSES, BLOCKS)                    \
  KERNEL(NAME##_NN, T, false, false, BM, BN, BK, STAGES, WM, WN, PASSES, BLOCKS)      \
  KERNEL(NAME##_NT, T, false, true, BM, BN, BK, STAGES, WM, WN, PASSES, BLOCKS)       \
  KERNEL(NAME##_TN, T, true, false, BM, BN, BK, STAGES, WM, WN, PASSES, BLOCKS)

FORMS(pcp_product_f32_128, float, 128, 128, 16, 4, 64, 32, 3, 1)
FORMS(pcp_product_f32_64, float, 64, 64, 16, 4, 32, 32, 3, 3)
FORMS(pcp_product_tf32_128, float, 128, 128, 16, 4, 64, 32, 1, 1)
FORMS(pcp_product_tf32_64, float, 64, 64, 16, 4, 32, 32, 1, 3)
FORMS(pcp_product_bf16_128, __nv_bfloat16, 128, 128, 32, 4, 64, 32, 1, 2)
FORMS(pcp_product_bf16_64, __nv_bfloat16, 64, 64, 32, 4, 32, 32, 1, 4)
FORMS(pcp_product_f16_128, __half, 128, 128, 32, 4, 64, 32, 1, 2)
FORMS(pcp_product_f16_64, __half, 64, 64, 32, 4, 32, 32, 1, 4)
