/* The loops of the mover, compiled: bytes between a socket and memory, checksummed and
 * added while they are in the cache, without the interpreter's lock.
 *
 * `incoming.py`, `outgoing.py` and `scheduled_reduce.py` have the same loops in Python;
 * tests run both.
 */
#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030B0000
#endif
#include <Python.h>
#include "_bulk.h"
#include "_moves.h"

/* The type Hash, with the interface of xxhash.xxh3_64. */

typedef struct {
    PyObject_HEAD
    Hash hash;
} HashObject;

static PyTypeObject *hash_type;

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

/* copy(to, from): of different memory, and so much that no cache keeps it. */
static PyObject *copy(PyObject *module, PyObject *args)
{
    Py_buffer to, from;
    if (!PyArg_ParseTuple(args, "w*y*", &to, &from))
        return NULL;
    int fits = to.len == from.len;
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        copy_past(to.buf, from.buf, (size_t)to.len);
        Py_END_ALLOW_THREADS
    } else
        PyErr_SetString(PyExc_ValueError, "the memory has not the same size");
    PyBuffer_Release(&to);
    PyBuffer_Release(&from);
    if (fits)
        Py_RETURN_NONE;
    return NULL;
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

/* The type Moves: `_moves.h` for Python. */

enum { VALUES, OUT, AT, HERE, TABLE, BEFORE, PLAIN };

typedef struct {
    PyObject_HEAD
    Moves moves;
    Py_buffer kept[PLAIN + MOST_PEERS];
    int held;
} MovesObject;

static void moves_dealloc(PyObject *object)
{
    MovesObject *self = (MovesObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc drop = (freefunc)PyType_GetSlot(type, Py_tp_free);
    while (self->held)
        PyBuffer_Release(&self->kept[--self->held]);
    PyMem_Free(self->moves.peers);
    drop(object);
    Py_DECREF(type);
}

static int keep(MovesObject *self, PyObject *from, int flags)
{
    if (PyObject_GetBuffer(from, &self->kept[self->held], flags) < 0)
        return 0;
    self->held++;
    return 1;
}

/* Whether all numbers are within the memory; sets the rest of the fields. */
static int consistent(MovesObject *self, const Py_buffer *prefix)
{
    Moves *m = &self->moves;
    const Py_buffer *kept = self->kept;
    Py_ssize_t count = kept[AT].len / 8, befores = kept[BEFORE].len / 8;
    m->sum = sum_of(m->code, &m->size);
    if (m->sum == NULL || prefix->len != PREFIX || m->step < 1 ||
        kept[HERE].len != kept[AT].len || kept[VALUES].len != kept[OUT].len ||
        kept[TABLE].len != count * (Py_ssize_t)sizeof(Move) ||
        (m->mean && m->code != 'f' && m->code != 'd'))
        return 0;
    m->moves = kept[TABLE].buf;
    m->before = kept[BEFORE].buf;
    m->at = kept[AT].buf;
    m->here = kept[HERE].buf;
    m->values = kept[VALUES].buf;
    m->out = kept[OUT].buf;
    m->move_count = (int)count;
    memcpy(m->prefix, prefix->buf, PREFIX);
    m->checked = m->prefix[7] == 1;
    int64_t elements = (int64_t)((size_t)kept[OUT].len / m->size);
    for (int i = 0; i < m->move_count; i++) {
        const Move *move = &m->moves[i];
        if (move->peer < 0 || move->peer >= m->peer_count || m->at[i] < 0 ||
            m->here[i] < 0 || move->stop < m->at[i] || move->stop > elements ||
            move->after < 0 || move->afters < 0 || move->after + move->afters > befores ||
            (!move->sends && move->reduce && move->afters))
            return 0;
        for (int64_t k = 0; k < move->afters; k++)
            if (m->before[move->after + k] < 0 || m->before[move->after + k] >= count)
                return 0;
    }
    for (int i = 0; i < m->peer_count; i++)
        if (kept[PLAIN + i].len < PIECE)
            return 0;
    return 1;
}

/* Moves(prefix, code, came_first, mean, step, values, out, at, here, table, before,
 *       scratch of each peer) */
static PyObject *moves_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *parts[PLAIN], *scratch;
    int code, came_first, mean;
    long long step;
    Py_buffer prefix;
    if (!PyArg_ParseTuple(args, "y*ipiLOOOOOOO!", &prefix, &code, &came_first, &mean,
                          &step, &parts[0], &parts[1], &parts[2], &parts[3], &parts[4],
                          &parts[5], &PyTuple_Type, &scratch))
        return NULL;
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    MovesObject *self = (MovesObject *)make(type, 0);
    Py_ssize_t peers = PyTuple_Size(scratch);
    int good = self != NULL && peers <= MOST_PEERS;
    for (int i = 0; good && i < PLAIN; i++)
        good = keep(self, parts[i], i == OUT || i == AT || i == HERE ? PyBUF_WRITABLE
                                                                     : PyBUF_SIMPLE);
    for (Py_ssize_t i = 0; good && i < peers; i++)
        good = keep(self, PyTuple_GetItem(scratch, i), PyBUF_WRITABLE);
    if (good) {
        Moves *m = &self->moves;
        m->peers = PyMem_Calloc((size_t)peers + 1, sizeof(Peer));
        m->peer_count = (int)peers;
        m->code = code;
        m->came_first = came_first;
        m->mean = mean;
        m->step = step;
        good = m->peers != NULL && consistent(self, &prefix);
        for (int i = 0; good && i < m->peer_count; i++) {
            m->peers[i].in_move = m->peers[i].out_move = NONE;
            m->peers[i].scratch = self->kept[PLAIN + i].buf;
        }
    }
    PyBuffer_Release(&prefix);
    if (good)
        return (PyObject *)self;
    Py_XDECREF((PyObject *)self);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "these moves do not fit their memory");
    return NULL;
}

/* run(ends, others, milliseconds, watch, budget) -> (why, peer, elements that came) */
static PyObject *moves_run(PyObject *object, PyObject *args)
{
    Moves *m = &((MovesObject *)object)->moves;
    PyObject *ends;
    int others, milliseconds, watch;
    unsigned long long budget;
    if (!PyArg_ParseTuple(args, "O!iiiK", &PyTuple_Type, &ends, &others, &milliseconds,
                          &watch, &budget))
        return NULL;
    if (PyTuple_Size(ends) != m->peer_count) {
        PyErr_SetString(PyExc_ValueError, "there are two ends for each peer");
        return NULL;
    }
    for (int i = 0; i < m->peer_count; i++) {
        Peer *p = &m->peers[i];
        if (!PyArg_ParseTuple(PyTuple_GetItem(ends, i), "iip", &p->in_fd, &p->out_fd,
                              &p->hold))
            return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    moves_on(m, others, milliseconds, watch, budget);
    Py_END_ALLOW_THREADS
    int64_t done = m->done;
    m->done = 0;
    return Py_BuildValue("iiL", m->why, m->which, (long long)done);
}

static Peer *peer_of(PyObject *object, PyObject *number)
{
    Moves *m = &((MovesObject *)object)->moves;
    long which = PyLong_AsLong(number);
    if (which >= 0 && which < m->peer_count)
        return &m->peers[which];
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_IndexError, "there is no such peer");
    return NULL;
}

static PyObject *moves_counts(PyObject *object, PyObject *number)
{
    Peer *p = peer_of(object, number);
    return p == NULL ? NULL : Py_BuildValue("KK", p->bytes_in, p->bytes_out);
}

static PyObject *moves_head(PyObject *object, PyObject *number)
{
    Peer *p = peer_of(object, number);
    if (p == NULL)
        return NULL;
    Py_ssize_t count = (Py_ssize_t)p->head_fill;
    p->head_fill = 0;
    return PyBytes_FromStringAndSize((const char *)p->head, count);
}

static PyObject *hash_copy(const Hash *from)
{
    PyObject *copy = PyObject_CallNoArgs((PyObject *)hash_type);
    if (copy != NULL)
        ((HashObject *)copy)->hash = *from;
    return copy;
}

/* unread(peer) -> None or (move, header, from, at, fill, left, hash, trailer) */
static PyObject *moves_unread(PyObject *object, PyObject *number)
{
    Peer *p = peer_of(object, number);
    if (p == NULL)
        return NULL;
    if (p->in_move == NONE)
        Py_RETURN_NONE;
    return Py_BuildValue("Ly#LLnnNy#", (long long)p->in_move, p->frame,
                         (Py_ssize_t)HEADER, (long long)p->in_from,
                         (long long)p->in_at, (Py_ssize_t)p->fill,
                         (Py_ssize_t)p->in_left, hash_copy(&p->in_hash), p->trailer,
                         (Py_ssize_t)p->trailer_fill);
}

/* unsent(peer) -> None or (move, from, bytes, sent, hashed, hash) */
static PyObject *moves_unsent(PyObject *object, PyObject *number)
{
    Peer *p = peer_of(object, number);
    if (p == NULL)
        return NULL;
    if (p->out_move == NONE)
        Py_RETURN_NONE;
    return Py_BuildValue("LLnnnN", (long long)p->out_move, (long long)p->out_from,
                         (Py_ssize_t)p->out_bytes, (Py_ssize_t)p->sent,
                         (Py_ssize_t)p->hashed, hash_copy(&p->out_hash));
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
static PyMethodDef moves_methods[] = {
    {"run", moves_run, METH_VARARGS, "Move until something else is to be done."},
    {"counts", moves_counts, METH_O, "Bytes received from a peer, and sent to it."},
    {"head", moves_head, METH_O, "Take the bytes of a header that has come."},
    {"unread", moves_unread, METH_O, "The frame that is being received."},
    {"unsent", moves_unsent, METH_O, "The frame that is being sent."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot moves_slots[] = {
    {Py_tp_new, moves_new},
    {Py_tp_dealloc, moves_dealloc},
    {Py_tp_methods, moves_methods},
    {0, NULL}};
static PyType_Spec moves_spec = {"pcp.runtime.transport._mover.Moves",
                                 sizeof(MovesObject), 0, Py_TPFLAGS_DEFAULT,
                                 moves_slots};
static PyMethodDef functions[] = {
    {"receive", receive, METH_VARARGS, "Receive and add what a socket has."},
    {"copy", copy, METH_VARARGS, "Copy more than a cache keeps."},
    {"send", send_frame, METH_VARARGS, "Send what a socket takes of a frame."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_mover", NULL, -1,
                                        functions, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__mover(void)
{
    PyObject *module = PyModule_Create(&definition);
    crc_prepare();
    choose_loops();
    hash_type = (PyTypeObject *)PyType_FromSpec(&hash_spec);
    PyObject *moves_type = PyType_FromSpec(&moves_spec);
    if (module == NULL || hash_type == NULL || moves_type == NULL ||
        PyModule_AddObjectRef(module, "Hash", (PyObject *)hash_type) < 0 ||
        PyModule_AddObjectRef(module, "Moves", moves_type) < 0 ||
        PyModule_AddIntConstant(module, "INTERFACE", 2) < 0) {
        Py_XDECREF(module);
        module = NULL;
    }
    Py_XDECREF(moves_type);
    return module;
}
