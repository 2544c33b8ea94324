/* The reductions of a compiled loop, and the frames under way to and from its peers.
 *
 * A reduction is a job: its data, and among few members also the OPEN frames of its
 * peers and all votes. A job in place makes its result in the caller's array, and saves
 * what was there. Until all have voted `job_undo` puts that back; the result, so far, is
 * in the other memory then.
 */
enum { NONE = -1, VOTE = -2, OPENING = -2, MOST_PEERS = 64, MOST_JOBS = 8 };
/* Why the loop came back. */
enum { READY = 0, IDLE = 1, FOREIGN = 2, BROKEN = 3, DAMAGED = 4 };

typedef struct {
    int64_t peer, round, start, stop, sends, reduce, ends, saves, after, afters;
} Move; /* `start`, `stop` in elements; `after`, `afters`: a part of the list of indices */

typedef struct {
    Move *moves;
    const int64_t *before; /* the indices that moves are after */
    int64_t *at, *here;    /* of each move, in elements; Python has them too */
    int64_t id, step, done;
    uint8_t prefix[PREFIX], vote[HEADER];
    uint8_t *values, *out;
    const uint8_t *open; /* the OPEN frame of every peer, if votes are here */
    size_t size, open_bytes;
    Sum sum;
    int move_count, came_first, checked, mean, code;
    int in_place, votes, moved, voted, over;
    uint64_t everyone, opened, heard, said; /* peers, as bits */
    int64_t opened_at[MOST_PEERS], first_at, voted_at; /* microseconds */
} Job;

typedef struct {
    int in_fd, out_fd; /* of this turn: NONE where there is nothing to do */
    uint8_t head[HEADER], frame[HEADER], trailer[TRAILER], *scratch;
    size_t head_fill, in_left, fill, trailer_fill;
    Job *in_job, *out_job;
    int64_t in_move, in_at, in_stop, in_from;
    Hash in_hash;
    uint8_t out_head[HEADER];
    int64_t out_move, out_from;
    size_t out_bytes, sent, hashed;
    Hash out_hash;
    uint64_t bytes_in, bytes_out;
} Peer;

typedef struct {
    Peer *peers;
    Job *jobs[MOST_JOBS]; /* in the order in which they came */
    int peer_count, job_count, why, which, others;
} Moves;

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static uint8_t *place(const Job *job, uint8_t *memory, int64_t element)
{
    return memory + (size_t)element * job->size;
}

/* The memory in which the result is made. */
static uint8_t *result_of(const Job *job)
{
    return job->in_place ? job->values : job->out;
}

/* Up to where in [at, end) all moves before this one are done, as far as they go. */
static int64_t reached(const Job *job, const Move *move, int64_t at, int64_t end)
{
    for (int64_t i = 0; i < move->afters; i++) {
        int64_t index = job->before[move->after + i], to = job->at[index];
        if (to < job->moves[index].stop && to < end)
            end = to < at ? at : to;
    }
    return end;
}

static void divide(uint8_t *out, size_t n, int code, int members)
{
    if (code == 'f')
        for (float *x = (float *)out; n--; x++)
            *x /= (float)members;
    else
        for (double *x = (double *)out; n--; x++)
            *x /= (double)members;
}

/* Put back what was in the caller's array; the result, so far, is in `out`. */
static void job_undo(const Moves *m, Job *job)
{
    if (!job->in_place || (job->over && job->votes))
        return;
    uint8_t between[4096];
    for (int i = 0; i < job->move_count; i++) {
        const Move *move = &job->moves[i];
        int64_t end = job->here[i];
        if (move->sends || !move->saves)
            continue;
        for (int k = 0; k < m->peer_count; k++)
            if (m->peers[k].in_job == job && m->peers[k].in_move == i)
                end = m->peers[k].in_stop;
        size_t left = (size_t)(end - move->start) * job->size;
        uint8_t *a = place(job, job->values, move->start);
        uint8_t *b = place(job, job->out, move->start);
        while (left) {
            size_t n = left < sizeof between ? left : sizeof between;
            memcpy(between, a, n);
            memcpy(a, b, n);
            memcpy(b, between, n);
            a += n;
            b += n;
            left -= n;
        }
    }
    job->in_place = 0;
}
