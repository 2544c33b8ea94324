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
#ifdef __linux__
#include <sys/epoll.h>
#endif
#include "_bulk.h"
#include "_frames.h"
#include "_jobs.h"
#include "_lent.h"
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

#include "_moves_type.h"

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
/* Small calls of the system that do not wait: they keep the interpreter's lock, which
 * costs a busy interpreter's other threads nothing, and this one milliseconds to get
 * back. */

enum { MOST_VIEWS = 64, MOST_EVENTS = 64 };

/* push(fd, buffers) -> bytes that the socket took */
static PyObject *push(PyObject *module, PyObject *args)
{
    PyObject *buffers;
    Py_buffer views[MOST_VIEWS];
    struct iovec parts[MOST_VIEWS];
    struct msghdr message = {0};
    Py_ssize_t held = 0, sent = -1;
    int fd;
    if (!PyArg_ParseTuple(args, "iO", &fd, &buffers))
        return NULL;
    Py_ssize_t count = PySequence_Size(buffers);
    for (; held < count && held < MOST_VIEWS; held++) {
        PyObject *one = PySequence_GetItem(buffers, held);
        int good = one != NULL && PyObject_GetBuffer(one, &views[held], PyBUF_SIMPLE) == 0;
        Py_XDECREF(one);
        if (!good)
            break;
        parts[held] = (struct iovec){views[held].buf, (size_t)views[held].len};
    }
    if (!PyErr_Occurred()) {
        message.msg_iov = parts;
        message.msg_iovlen = (size_t)held;
        do
            sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent < 0)
            PyErr_SetFromErrno(PyExc_OSError);
    }
    while (held)
        PyBuffer_Release(&views[--held]);
    return sent < 0 ? NULL : PyLong_FromSsize_t(sent);
}

/* pull(fd, room) -> bytes that came */
static PyObject *pull(PyObject *module, PyObject *args)
{
    Py_buffer room;
    int fd;
    ssize_t came;
    if (!PyArg_ParseTuple(args, "iw*", &fd, &room))
        return NULL;
    do
        came = recv(fd, room.buf, (size_t)room.len, MSG_DONTWAIT);
    while (came < 0 && errno == EINTR);
    if (came < 0)
        PyErr_SetFromErrno(PyExc_OSError);
    PyBuffer_Release(&room);
    return came < 0 ? NULL : PyLong_FromSsize_t(came);
}

#ifdef __linux__
/* peek(epoll) -> [(fd, readable, writable)] of what is ready now */
static PyObject *peek(PyObject *module, PyObject *number)
{
    struct epoll_event events[MOST_EVENTS];
    int fd = (int)PyLong_AsLong(number), count = epoll_wait(fd, events, MOST_EVENTS, 0);
    if (count < 0 && errno != EINTR)
        return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *found = PyList_New(0);
    for (int i = 0; found != NULL && i < count; i++) {
        int reads = (events[i].events & ~(uint32_t)EPOLLOUT) != 0;
        int writes = (events[i].events & ~(uint32_t)EPOLLIN) != 0;
        PyObject *one = Py_BuildValue("iii", events[i].data.fd, reads, writes);
        if (one == NULL || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}
#endif

static PyMethodDef functions[] = {
#ifdef __linux__
    {"peek", peek, METH_O, "What a selector would report at once."},
#endif
    {"lend", lend, METH_O, "A DLPack capsule of memory, given back in any thread."},
    {"push", push, METH_VARARGS, "Send what a socket takes, with the lock held."},
    {"pull", pull, METH_VARARGS, "Receive what a socket has, with the lock held."},
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
        PyModule_AddIntConstant(module, "INTERFACE", 3) < 0) {
        Py_XDECREF(module);
        module = NULL;
    }
    Py_XDECREF(moves_type);
    return module;
}
