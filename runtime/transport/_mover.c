/* The loops of the mover, compiled: bytes between a socket and memory, checksummed and
 * added while they are in the cache, without the interpreter's lock.
 *
 * `incoming.py`, `outgoing.py` and `scheduled_reduce.py` have the same loops in Python;
 * tests run both. The checksum is XXH3 of 64 bits with the default secret and no seed
 * (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), for inputs of more than 240 bytes.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_AVX2 1
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
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

static void stripes_plain(uint64_t *acc, const uint8_t *in, const uint8_t *key, size_t n)
{
    for (; n--; in += STRIPE, key += 8)
        for (int i = 0; i < 8; i++) {
            uint64_t value = read64(in + 8 * i), mixed = value ^ read64(key + 8 * i);
            acc[i ^ 1] += value;
            acc[i] += (mixed & 0xFFFFFFFFu) * (mixed >> 32);
        }
}

#ifdef HAVE_AVX2
__attribute__((target("avx2"))) static void
stripes_avx2(uint64_t *acc, const uint8_t *in, const uint8_t *key, size_t n)
{
    __m256i sum[2];
    memcpy(sum, acc, sizeof sum);
    for (; n--; in += STRIPE, key += 8)
        for (int i = 0; i < 2; i++) {
            __m256i value = _mm256_loadu_si256((const __m256i *)in + i);
            __m256i mixed = _mm256_xor_si256(
                value, _mm256_loadu_si256((const __m256i *)key + i));
            __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
            __m256i swapped = _mm256_shuffle_epi32(value, _MM_SHUFFLE(1, 0, 3, 2));
            sum[i] = _mm256_add_epi64(sum[i], _mm256_add_epi64(swapped, product));
        }
    memcpy(acc, sum, sizeof sum);
}
#endif

static void (*stripes)(uint64_t *, const uint8_t *, const uint8_t *, size_t) =
    stripes_plain;

static void consume(Hash *hash, const uint8_t *in, size_t n)
{
    while (n) {
        size_t now = PER_BLOCK - hash->in_block;
        if (now > n)
            now = n;
        stripes(hash->acc, in, secret + 8 * hash->in_block, now);
        in += now * STRIPE;
        n -= now;
        hash->in_block += now;
        if (hash->in_block == PER_BLOCK) {
            const uint8_t *key = secret + SECRET - STRIPE;
            for (int i = 0; i < 8; i++) {
                uint64_t acc = hash->acc[i];
                hash->acc[i] = (acc ^ (acc >> 47) ^ read64(key + 8 * i)) * Q1;
            }
            hash->in_block = 0;
        }
    }
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
    stripes(acc, last, secret + SECRET - STRIPE - 7, 1);
    for (int i = 0; i < 4; i++) {
        const uint8_t *key = secret + 11 + 16 * i;
        value += folded(acc[2 * i] ^ read64(key), acc[2 * i + 1] ^ read64(key + 8));
    }
    value ^= value >> 37;
    value *= 0x165667919E3779F9u;
    return value ^ (value >> 32);
}

/* Sums, of the element types whose numpy loop is one addition. */

#define SUM(name, type)                                                              \
    static void name(uint8_t *out, const uint8_t *a, const uint8_t *b, size_t n)      \
    {                                                                                \
        type *to = (type *)out;                                                      \
        const type *x = (const type *)a, *y = (const type *)b;                       \
        for (size_t i = 0; i < n; i++)                                               \
            to[i] = x[i] + y[i];                                                     \
    }
SUM(sum_f32, float)
SUM(sum_f64, double)
SUM(sum_i32, uint32_t)
SUM(sum_i64, uint64_t)

typedef void (*Sum)(uint8_t *, const uint8_t *, const uint8_t *, size_t);

static Sum sum_of(int code, size_t *size)
{
    *size = code == 'd' || code == 'l' ? 8 : 4;
    return code == 'f' ? sum_f32 : code == 'd' ? sum_f64 : code == 'i' ? sum_i32
         : code == 'l' ? sum_i64 : NULL;
}

/* The type Hash, with the interface of xxhash.xxh3_64. */

typedef struct {
    PyObject_HEAD
    Hash hash;
} HashObject;

static PyTypeObject *hash_type;

static void hash_reset(Hash *hash)
{
    const uint64_t first[8] = {Q3, P1, P2, P3, P4, Q2, P5, Q1};
    memset(hash, 0, sizeof *hash);
    memcpy(hash->acc, first, sizeof first);
}

static PyObject *hash_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    HashObject *self = (HashObject *)make(type, 0);
    if (self != NULL)
        hash_reset(&self->hash);
    return (PyObject *)self;
}

static void hash_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc drop = (freefunc)PyType_GetSlot(type, Py_tp_free);
    drop(self);
    Py_DECREF(type);
}

static PyObject *hash_py_update(PyObject *self, PyObject *data)
{
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    hash_update(&((HashObject *)self)->hash, view.buf, (size_t)view.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyObject *hash_py_digest(PyObject *self, PyObject *none)
{
    Hash *hash = &((HashObject *)self)->hash;
    if (hash->total < LEAST) {
        PyErr_SetString(PyExc_ValueError, "the checksum is of more than 240 bytes");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(hash_digest(hash));
}

/* Receiving. */

typedef struct {
    int fd;
    Hash *hash;
    uint8_t *scratch, *out;
    const uint8_t *here;
    size_t room, fill, left, budget, size, done; /* bytes */
    Sum sum;
    int came_first;
    int status; /* 0: go on; 1: nothing there; 2: the end; 3: an error */
    int error;
} Receive;

static void receive_on(Receive *r)
{
    while (r->left && r->budget && !r->status) {
        uint8_t *to = r->sum ? r->scratch + r->fill : r->out + r->done;
        size_t most = r->sum ? r->room - r->fill : PIECE;
        if (most > r->left)
            most = r->left;
        ssize_t got = recv(r->fd, to, most, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            r->error = errno;
            r->status = !got ? 2 : r->error == EAGAIN || r->error == EWOULDBLOCK ? 1 : 3;
            return;
        }
        if (r->hash)
            hash_update(r->hash, to, (size_t)got);
        r->left -= (size_t)got;
        r->budget -= r->budget < (size_t)got ? r->budget : (size_t)got;
        if (!r->sum) {
            r->done += (size_t)got;
            continue;
        }
        size_t whole = (r->fill + (size_t)got) / r->size, bytes = whole * r->size;
        const uint8_t *here = r->here + r->done;
        r->sum(r->out + r->done, r->came_first ? r->scratch : here,
               r->came_first ? here : r->scratch, whole);
        r->done += bytes;
        r->fill += (size_t)got - bytes;
        memmove(r->scratch, r->scratch + bytes, r->fill);
    }
}

static Hash *hash_of(PyObject *object)
{
    return object == Py_None ? NULL : &((HashObject *)object)->hash;
}

static int is_hash(PyObject *object)
{
    if (object == Py_None || PyObject_TypeCheck(object, hash_type))
        return 1;
    PyErr_SetString(PyExc_TypeError, "the checksum is a Hash, or None");
    return 0;
}

/* receive(fd, hash, out, here, scratch, fill, left, budget, code, came_first)
 * -> (bytes received, bytes done of out, fill, status, errno) */
static PyObject *receive(PyObject *module, PyObject *args)
{
    PyObject *hash;
    Py_buffer out, here, scratch;
    Py_ssize_t fill, left, budget;
    int fd, code, came_first;
    if (!PyArg_ParseTuple(args, "iOw*y*w*nnnip", &fd, &hash, &out, &here, &scratch,
                          &fill, &left, &budget, &code, &came_first))
        return NULL;
    Receive r = {fd, NULL, scratch.buf, out.buf, here.buf, (size_t)scratch.len,
                 (size_t)fill, (size_t)left, (size_t)budget, 1, 0, NULL, came_first, 0, 0};
    PyObject *result = NULL;
    r.sum = sum_of(code, &r.size);
    if (fill < 0 || left < 0 || budget < 0 || out.len < left ||
        (r.sum && (fill + left > out.len || here.len < out.len || fill >= scratch.len)) ||
        (!r.sum && code != '-'))
        PyErr_SetString(PyExc_ValueError, "the memory is too small, or the type is wrong");
    else if (is_hash(hash)) {
        r.hash = hash_of(hash);
        Py_BEGIN_ALLOW_THREADS
        receive_on(&r);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("nnnii", left - (Py_ssize_t)r.left, (Py_ssize_t)r.done,
                               (Py_ssize_t)r.fill, r.status, r.error);
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&here);
    PyBuffer_Release(&scratch);
    return result;
}

/* Sending: a header, a payload, and its checksum behind it if there is a hash. */

typedef struct {
    int fd, status, error;
    Hash *hash;
    const uint8_t *head, *payload;
    size_t head_bytes, bytes, sent, hashed, budget;
} Send;

static void send_on(Send *s)
{
    size_t trailer_bytes = s->hash ? 4 : 0, start = s->sent;
    size_t all = s->head_bytes + s->bytes + trailer_bytes;
    while (s->sent < all && s->sent - start < s->budget) {
        struct iovec parts[3];
        struct msghdr message = {0};
        uint8_t trailer[4];
        size_t count = 0;
        if (s->sent < s->head_bytes)
            parts[count++] = (struct iovec){(void *)(s->head + s->sent),
                                            s->head_bytes - s->sent};
        size_t at = s->sent < s->head_bytes ? 0 : s->sent - s->head_bytes;
        if (at < s->bytes) {
            size_t piece = s->bytes - at < PIECE ? s->bytes - at : PIECE;
            if (s->hash && s->hashed < at + piece) {
                hash_update(s->hash, s->payload + s->hashed, at + piece - s->hashed);
                s->hashed = at + piece;
            }
            parts[count++] = (struct iovec){(void *)(s->payload + at), piece};
            at += piece;
        }
        if (trailer_bytes && at >= s->bytes) {
            uint32_t total = (uint32_t)hash_digest(s->hash);
            size_t gone = at - s->bytes;
            for (int i = 0; i < 4; i++)
                trailer[i] = (uint8_t)(total >> (24 - 8 * i));
            parts[count++] = (struct iovec){trailer + gone, 4 - gone};
        }
        message.msg_iov = parts;
        message.msg_iovlen = count;
        ssize_t taken = sendmsg(s->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (taken < 0) {
            if (errno == EINTR)
                continue;
            s->error = errno;
            s->status = s->error == EAGAIN || s->error == EWOULDBLOCK ? 1 : 3;
            return;
        }
        s->sent += (size_t)taken;
    }
}

/* send(fd, hash, head, payload, sent, hashed, budget) -> (sent, hashed, status, errno) */
static PyObject *send_frame(PyObject *module, PyObject *args)
{
    PyObject *hash, *result = NULL;
    Py_buffer head, payload;
    Py_ssize_t sent, hashed, budget;
    int fd;
    if (!PyArg_ParseTuple(args, "iOy*y*nnn", &fd, &hash, &head, &payload, &sent,
                          &hashed, &budget))
        return NULL;
    if (sent < 0 || hashed < 0 || hashed > payload.len || budget < 0 ||
        (hash != Py_None && payload.len < LEAST))
        PyErr_SetString(PyExc_ValueError, "no frame has these positions");
    else if (is_hash(hash)) {
        Send s = {fd, 0, 0, hash_of(hash), head.buf, payload.buf, (size_t)head.len,
                  (size_t)payload.len, (size_t)sent, (size_t)hashed, (size_t)budget};
        Py_BEGIN_ALLOW_THREADS
        send_on(&s);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("nnii", (Py_ssize_t)s.sent, (Py_ssize_t)s.hashed,
                               s.status, s.error);
    }
    PyBuffer_Release(&head);
    PyBuffer_Release(&payload);
    return result;
}

static PyMethodDef hash_methods[] = {
    {"update", hash_py_update, METH_O, "Read these bytes."},
    {"intdigest", hash_py_digest, METH_NOARGS, "The checksum of all bytes so far."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot hash_slots[] = {
    {Py_tp_new, hash_new},
    {Py_tp_dealloc, hash_dealloc},
    {Py_tp_methods, hash_methods},
    {0, NULL}};
static PyType_Spec hash_spec = {"pcp.runtime.transport._mover.Hash", sizeof(HashObject),
                                0, Py_TPFLAGS_DEFAULT, hash_slots};
static PyMethodDef functions[] = {
    {"receive", receive, METH_VARARGS, "Receive and add what a socket has."},
    {"send", send_frame, METH_VARARGS, "Send what a socket takes of a frame."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_mover", NULL, -1,
                                        functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__mover(void)
{
    PyObject *module = PyModule_Create(&definition);
#ifdef HAVE_AVX2
    if (__builtin_cpu_supports("avx2"))
        stripes = stripes_avx2;
#endif
    hash_type = (PyTypeObject *)PyType_FromSpec(&hash_spec);
    if (module == NULL || hash_type == NULL ||
        PyModule_AddObjectRef(module, "Hash", (PyObject *)hash_type) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
