/* The type Moves: `_moves.h` for Python. */

enum { VALUES, OUT, AT, HERE, TABLE, BEFORE, OPEN_FRAME, PLAIN };

typedef struct {
    Job job;
    Py_buffer kept[PLAIN];
    int held;
} Kept; /* a job, and the memory that it works in */

typedef struct {
    PyObject_HEAD
    Moves moves;
    int64_t next;
} MovesObject;

static void job_free(Kept *kept)
{
    while (kept->held)
        PyBuffer_Release(&kept->kept[--kept->held]);
    PyMem_Free(kept);
}

static void moves_dealloc(PyObject *object)
{
    Moves *m = &((MovesObject *)object)->moves;
    PyTypeObject *type = Py_TYPE(object);
    freefunc drop = (freefunc)PyType_GetSlot(type, Py_tp_free);
    while (m->job_count)
        job_free((Kept *)m->jobs[--m->job_count]);
    for (int i = 0; m->peers != NULL && i < m->peer_count; i++)
        PyMem_Free(m->peers[i].scratch);
    PyMem_Free(m->peers);
    drop(object);
    Py_DECREF(type);
}

/* Moves(peers): the loop over so many peers' sockets. */
static PyObject *moves_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    int peers;
    if (!PyArg_ParseTuple(args, "i", &peers))
        return NULL;
    if (peers < 1 || peers > MOST_PEERS) {
        PyErr_SetString(PyExc_ValueError, "there are 1 to 64 peers");
        return NULL;
    }
    allocfunc make = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    MovesObject *self = (MovesObject *)make(type, 0);
    if (self == NULL)
        return NULL;
    Moves *m = &self->moves;
    int good = (m->peers = PyMem_Calloc((size_t)peers, sizeof(Peer))) != NULL;
    m->peer_count = good ? peers : 0;
    for (int i = 0; good && i < peers; i++) {
        m->peers[i].in_move = m->peers[i].out_move = NONE;
        good = (m->peers[i].scratch = PyMem_Malloc(PIECE)) != NULL;
    }
    if (good)
        return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return PyErr_NoMemory();
}

/* Whether all numbers are within the memory; sets the rest of the fields. */
static int consistent(const Moves *m, Kept *kept, const Py_buffer *prefix,
                      const Py_buffer *vote)
{
    Job *job = &kept->job;
    const Py_buffer *of = kept->kept;
    Py_ssize_t count = of[AT].len / 8, befores = of[BEFORE].len / 8;
    job->sum = sum_of(job->code, &job->size);
    if (job->sum == NULL || prefix->len != PREFIX || job->step < 1 ||
        of[HERE].len != of[AT].len || of[VALUES].len != of[OUT].len ||
        of[TABLE].len != count * (Py_ssize_t)sizeof(Move) ||
        (job->mean && job->code != 'f' && job->code != 'd'))
        return 0;
    job->votes = vote->len != 0;
    if (job->votes && (vote->len != HEADER || of[OPEN_FRAME].len <= HEADER ||
                       of[OPEN_FRAME].len > HEADER + PIECE))
        return 0;
    job->moves = of[TABLE].buf;
    job->before = of[BEFORE].buf;
    job->at = of[AT].buf;
    job->here = of[HERE].buf;
    job->values = of[VALUES].buf;
    job->out = of[OUT].buf;
    job->open = of[OPEN_FRAME].buf;
    job->open_bytes = (size_t)of[OPEN_FRAME].len;
    job->move_count = (int)count;
    job->everyone = ~0ull >> (64 - m->peer_count);
    memcpy(job->prefix, prefix->buf, PREFIX);
    memcpy(job->vote, vote->buf, (size_t)vote->len);
    job->checked = job->prefix[7] == 1;
    int64_t elements = (int64_t)((size_t)of[OUT].len / job->size);
    for (int i = 0; i < job->move_count; i++) {
        const Move *move = &job->moves[i];
        if (move->peer < 0 || move->peer >= m->peer_count || move->start < 0 ||
            job->at[i] != move->start || job->here[i] < move->start ||
            job->here[i] > move->stop || move->stop > elements || move->after < 0 ||
            move->afters < 0 || move->after + move->afters > befores ||
            (!move->sends && move->reduce && move->afters))
            return 0;
        for (int64_t k = 0; k < move->afters; k++)
            if (job->before[move->after + k] < 0 || job->before[move->after + k] >= count)
                return 0;
    }
    return 1;
}

/* add((prefix, vote, open), (code, came_first, mean, step, in_place), values, out, at,
 *     here, table, before) -> the number of the job */
static PyObject *moves_add(PyObject *object, PyObject *args)
{
    MovesObject *self = (MovesObject *)object;
    Moves *m = &self->moves;
    PyObject *parts[PLAIN];
    Py_buffer prefix, vote;
    int code, came_first, mean, in_place;
    long long step;
    if (!PyArg_ParseTuple(args, "(y*y*O)(ipiLp)OOOOOO", &prefix, &vote,
                          &parts[OPEN_FRAME], &code, &came_first, &mean, &step, &in_place,
                          &parts[VALUES], &parts[OUT], &parts[AT], &parts[HERE],
                          &parts[TABLE], &parts[BEFORE]))
        return NULL;
    Kept *kept = PyMem_Calloc(1, sizeof *kept);
    int good = kept != NULL && m->job_count < MOST_JOBS;
    for (int i = 0; good && i < PLAIN; i++) {
        int writes = i == OUT || i == AT || i == HERE || (i == VALUES && in_place);
        int flags = writes ? PyBUF_WRITABLE : PyBUF_SIMPLE;
        good = PyObject_GetBuffer(parts[i], &kept->kept[i], flags) == 0;
        kept->held += good;
    }
    if (good) {
        Job *job = &kept->job;
        job->code = code;
        job->came_first = came_first;
        job->mean = mean;
        job->step = step;
        job->in_place = in_place;
        job->id = self->next++;
        good = consistent(m, kept, &prefix, &vote);
    }
    PyBuffer_Release(&prefix);
    PyBuffer_Release(&vote);
    if (good) {
        m->jobs[m->job_count++] = &kept->job;
        return PyLong_FromLongLong(kept->job.id);
    }
    if (kept != NULL)
        job_free(kept);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "these moves do not fit their memory");
    return NULL;
}

/* run(ends, others, milliseconds, watch, budget) -> (why, peer, others are readable) */
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
        if (!PyArg_ParseTuple(PyTuple_GetItem(ends, i), "ii", &p->in_fd, &p->out_fd))
            return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    moves_on(m, others, milliseconds, watch, budget);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("iii", m->why, m->which, m->others);
}

static Job *job_of(Moves *m, long long id)
{
    for (int i = 0; i < m->job_count; i++)
        if (m->jobs[i]->id == id)
            return m->jobs[i];
    PyErr_SetString(PyExc_KeyError, "there is no such job");
    return NULL;
}

/* state(job) -> (over, elements that came, when the first did, peers that opened as
 * bits, when each did, when this member voted, peers whose vote came, that have this
 * member's); times in microseconds, 0 for not yet */
static PyObject *moves_state(PyObject *object, PyObject *number)
{
    Moves *m = &((MovesObject *)object)->moves;
    Job *job = job_of(m, PyLong_AsLongLong(number));
    PyObject *times = job == NULL ? NULL : PyTuple_New(m->peer_count);
    if (times == NULL)
        return NULL;
    for (int i = 0; i < m->peer_count; i++)
        PyTuple_SetItem(times, i, PyLong_FromLongLong(job->opened_at[i]));
    int64_t done = job->done;
    job->done = 0;
    return Py_BuildValue("iLLKNLKK", job->over, (long long)done, (long long)job->first_at,
                         job->opened, times, (long long)job->voted_at, job->heard,
                         job->said);
}

/* note(job, peer, voted): a peer's OPEN frame, or its vote, came another way. */
static PyObject *moves_note(PyObject *object, PyObject *args)
{
    Moves *m = &((MovesObject *)object)->moves;
    long long id;
    int peer, voted;
    if (!PyArg_ParseTuple(args, "Lip", &id, &peer, &voted))
        return NULL;
    Job *job = job_of(m, id);
    if (job == NULL)
        return NULL;
    if (peer < 0 || peer >= m->peer_count) {
        PyErr_SetString(PyExc_IndexError, "there is no such peer");
        return NULL;
    }
    *(voted ? &job->heard : &job->opened) |= 1ull << peer;
    if (!voted && !job->opened_at[peer])
        job->opened_at[peer] = now();
    Py_RETURN_NONE;
}

/* drop(job): forget it. Its frames under way are lost: take them before. */
static PyObject *moves_drop(PyObject *object, PyObject *number)
{
    Moves *m = &((MovesObject *)object)->moves;
    Job *job = job_of(m, PyLong_AsLongLong(number));
    if (job == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    job_undo(m, job);
    Py_END_ALLOW_THREADS
    for (int i = 0; i < m->peer_count; i++) {
        Peer *p = &m->peers[i];
        p->in_move = p->in_job == job ? NONE : p->in_move;
        p->out_move = p->out_job == job ? NONE : p->out_move;
    }
    int at = 0;
    for (int i = 0; i < m->job_count; i++)
        if (m->jobs[i] != job)
            m->jobs[at++] = m->jobs[i];
    m->job_count = at;
    job_free((Kept *)job);
    Py_RETURN_NONE;
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

/* head(peer) -> the bytes of a frame of no job, as far as it has come */
static PyObject *moves_head(PyObject *object, PyObject *number)
{
    Peer *p = peer_of(object, number);
    if (p == NULL)
        return NULL;
    size_t head = p->head_fill, before = p->in_move == OPENING ? HEADER + p->fill : 0;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(before + head));
    if (bytes == NULL)
        return NULL;
    char *to = PyBytes_AsString(bytes);
    if (before) {
        memcpy(to, p->frame, HEADER);
        memcpy(to + HEADER, p->scratch, p->fill);
        p->in_move = NONE;
    }
    memcpy(to + before, p->head, head);
    p->head_fill = 0;
    return bytes;
}

static PyObject *hash_copy(const Hash *from)
{
    PyObject *copy = PyObject_CallNoArgs((PyObject *)hash_type);
    if (copy != NULL)
        ((HashObject *)copy)->hash = *from;
    return copy;
}

/* unread(peer) -> None or (job, (move, header, from, at, odd bytes, left, hash, trailer))
 *
 * The odd bytes of an element that is to be added; or how many came of another one. */
static PyObject *moves_unread(PyObject *object, PyObject *number)
{
    Peer *p = peer_of(object, number);
    if (p == NULL)
        return NULL;
    if (p->in_move < 0)
        Py_RETURN_NONE;
    Py_ssize_t odd = p->in_job->moves[p->in_move].reduce ? (Py_ssize_t)p->fill : 0;
    return Py_BuildValue("L(Ly#LLny#nNy#)", (long long)p->in_job->id,
                         (long long)p->in_move, p->frame, (Py_ssize_t)HEADER,
                         (long long)p->in_from, (long long)p->in_at, (Py_ssize_t)p->fill,
                         p->scratch, odd, (Py_ssize_t)p->in_left,
                         hash_copy(&p->in_hash), p->trailer, (Py_ssize_t)p->trailer_fill);
}

/* unsent(peer) -> None or (job, move or -2 for a vote, from, bytes, sent, hashed, hash) */
static PyObject *moves_unsent(PyObject *object, PyObject *number)
{
    Peer *p = peer_of(object, number);
    if (p == NULL)
        return NULL;
    if (p->out_move == NONE)
        Py_RETURN_NONE;
    return Py_BuildValue("LLLnnnN", (long long)p->out_job->id, (long long)p->out_move,
                         (long long)p->out_from, (Py_ssize_t)p->out_bytes,
                         (Py_ssize_t)p->sent, (Py_ssize_t)p->hashed,
                         hash_copy(&p->out_hash));
}

static PyMethodDef moves_methods[] = {
    {"add", moves_add, METH_VARARGS, "Take a job in."},
    {"drop", moves_drop, METH_O, "Forget a job; its array is as it was, or it is over."},
    {"run", moves_run, METH_VARARGS, "Move until something else is to be done."},
    {"state", moves_state, METH_O, "What is known of a job."},
    {"note", moves_note, METH_VARARGS, "Note a peer's OPEN frame, or its vote."},
    {"counts", moves_counts, METH_O, "Bytes received from a peer, and sent to it."},
    {"head", moves_head, METH_O, "Take the bytes of a frame of no job."},
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
