/* The moves of one reduction in one loop: frames of its data to and from its peers.
 *
 * The frames are those of `frame.py`. A frame of anything else ends the loop, which
 * then gives its header to the caller; a frame that is under way stays here.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif

enum { HEADER = 52, PREFIX = 28, TRAILER = 4, NONE = -1 };
/* Why the loop came back. */
enum { READY = 0, IDLE = 1, FOREIGN = 2, BROKEN = 3, DAMAGED = 4 };

typedef struct {
    int64_t peer, round, stop, sends, reduce, ends, after, afters;
} Move; /* `stop` in elements; `after`, `afters`: its part of the list of indices */

typedef struct {
    int in_fd, out_fd, hold; /* of this turn: NONE where there is nothing to do */
    uint8_t head[HEADER], frame[HEADER], trailer[TRAILER], *scratch;
    size_t head_fill, in_left, fill, trailer_fill;
    int64_t in_move, in_at, in_stop, in_from;
    Hash in_hash;
    uint8_t out_head[HEADER];
    int64_t out_move, out_from;
    size_t out_bytes, sent, hashed;
    Hash out_hash;
    uint64_t bytes_in, bytes_out;
} Peer;

typedef struct {
    Move *moves;
    const int64_t *before; /* the indices that moves are after */
    int64_t *at, *here;    /* of each move, in elements; Python has them too */
    Peer *peers;
    int move_count, peer_count, came_first, checked, mean;
    int code, why, which;
    uint8_t prefix[PREFIX];
    const uint8_t *values;
    uint8_t *out;
    size_t size;
    int64_t step, done;
    Sum sum;
} Moves;

/* A header, a payload, and its checksum behind it if there is a hash. */

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

static uint32_t crc_table[256];

static void crc_prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++)
            value = value & 1 ? value >> 1 ^ 0xEDB88320u : value >> 1;
        crc_table[i] = value;
    }
}

static uint32_t crc32_of(const uint8_t *in, size_t n)
{
    uint32_t value = 0xFFFFFFFFu;
    while (n--)
        value = crc_table[(value ^ *in++) & 0xFF] ^ value >> 8;
    return ~value;
}

static void put(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = bytes; i--; value >>= 8)
        to[i] = (uint8_t)value;
}

static uint64_t got(const uint8_t *from, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | from[i];
    return value;
}

/* Up to where in [at, end) all moves before this one are done, as far as they go. */
static int64_t reached(const Moves *m, const Move *move, int64_t at, int64_t end)
{
    for (int64_t i = 0; i < move->afters; i++) {
        int64_t index = m->before[move->after + i], to = m->at[index];
        if (to < m->moves[index].stop && to < end)
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

/* Find the move of the header that has come; 0 if it is of something else. */
static int begin_frame(Moves *m, int which)
{
    Peer *p = &m->peers[which];
    const uint8_t *head = p->head;
    uint64_t round = got(head + 28, 4), from = got(head + 32, 8);
    size_t length = (size_t)got(head + 40, 4);
    if (memcmp(head, m->prefix, PREFIX) || crc32_of(head, 48) != got(head + 48, 4) ||
        length % m->size || (m->checked && length < LEAST) || !length)
        return 0;
    for (int i = 0; i < m->move_count; i++) {
        const Move *move = &m->moves[i];
        if (move->sends || move->peer != which || (uint64_t)move->round != round ||
            (uint64_t)m->here[i] != from ||
            (int64_t)(length / m->size) > move->stop - m->here[i])
            continue;
        memcpy(p->frame, head, HEADER);
        p->in_move = i;
        p->head_fill = 0;
        p->in_at = p->in_from = m->here[i];
        p->in_stop = p->in_at + (int64_t)(length / m->size);
        p->in_left = length;
        p->fill = p->trailer_fill = 0;
        hash_reset(&p->in_hash);
        return 1;
    }
    return 0;
}

/* Take bytes of the payload that are in their room. */
static void payload_came(Moves *m, Peer *p, size_t count)
{
    const Move *move = &m->moves[p->in_move];
    p->in_left -= count;
    uint8_t *out = m->out + (size_t)p->in_at * m->size;
    if (!move->reduce) { /* `fill` are bytes behind in_at */
        if (m->checked)
            hash_update(&p->in_hash, out + p->fill, count);
        p->fill += count;
        return;
    }
    if (m->checked)
        hash_update(&p->in_hash, p->scratch + p->fill, count);
    size_t whole = (p->fill + count) / m->size, bytes = whole * m->size;
    const uint8_t *here = m->values + (size_t)p->in_at * m->size;
    m->sum(out, m->came_first ? p->scratch : here, m->came_first ? here : p->scratch,
           whole);
    if (m->mean && move->ends)
        divide(out, whole, m->code, m->mean);
    p->in_at += (int64_t)whole;
    p->fill += count - bytes;
    memmove(p->scratch, p->scratch + bytes, p->fill);
}

/* The frame is whole: what it brought may go on, if it is not damaged. */
static int end_frame(Moves *m, Peer *p)
{
    if (m->checked && (uint32_t)hash_digest(&p->in_hash) != got(p->trailer, TRAILER))
        return 0;
    m->at[p->in_move] = m->here[p->in_move] = p->in_stop;
    m->done += p->in_stop - p->in_from;
    p->in_move = NONE;
    return 1;
}

static size_t part(size_t *count, size_t want)
{
    size_t now = *count < want ? *count : want;
    *count -= now;
    return now;
}

/* One system call; the bytes that came, or why there are none. */
static size_t receive_some(Moves *m, int which)
{
    Peer *p = &m->peers[which];
    struct iovec parts[3];
    struct msghdr message = {0};
    size_t piece = 0, tail = 0, head = HEADER - p->head_fill, count = 0;
    if (p->in_move != NONE) {
        uint8_t *to = p->scratch + p->fill;
        piece = PIECE;
        if (m->moves[p->in_move].reduce)
            piece -= p->fill;
        else
            to = m->out + (size_t)p->in_at * m->size + p->fill;
        if (piece > p->in_left)
            piece = p->in_left;
        if (piece)
            parts[count++] = (struct iovec){to, piece};
        tail = m->checked && piece == p->in_left ? TRAILER - p->trailer_fill : 0;
        if (tail)
            parts[count++] = (struct iovec){p->trailer + p->trailer_fill, tail};
        head = piece == p->in_left ? HEADER : 0; /* the next one */
    }
    if (head)
        parts[count++] =
            (struct iovec){p->head + (p->in_move == NONE ? p->head_fill : 0), head};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    ssize_t came = recvmsg(p->in_fd, &message, MSG_DONTWAIT);
    if (came <= 0) {
        if (!came || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            m->why = BROKEN;
            m->which = which;
        }
        return 0;
    }
    size_t left = (size_t)came;
    p->bytes_in += left;
    if (p->in_move != NONE) {
        size_t now = part(&left, piece);
        if (now)
            payload_came(m, p, now);
        p->trailer_fill += part(&left, tail);
        if (p->in_left || (m->checked && p->trailer_fill < TRAILER))
            return (size_t)came;
        if (!end_frame(m, p)) {
            m->why = DAMAGED;
            m->which = which;
            p->head_fill = left;
            return (size_t)came;
        }
        p->head_fill = 0;
    }
    p->head_fill += left;
    if (p->head_fill == HEADER && !begin_frame(m, which)) {
        m->why = FOREIGN;
        m->which = which;
    }
    return (size_t)came;
}

/* Begin a frame of what is ready to be sent to a peer, if it is worth it. */
static int next_frame(Moves *m, int which)
{
    Peer *p = &m->peers[which];
    const int64_t least = 1024; /* never few elements: checksums need some bytes */
    for (int i = 0; i < m->move_count; i++) {
        const Move *move = &m->moves[i];
        int64_t at = m->at[i], stop = move->stop;
        if (!move->sends || move->peer != which || at == stop)
            continue;
        int64_t end = reached(m, move, at, stop);
        if (end - at < m->step && end < stop)
            continue;
        if (end > at + m->step)
            end = at + m->step;
        if (end < stop && stop - end < least)
            end = stop - at > 2 * least ? stop - least : stop;
        if (end > reached(m, move, at, stop))
            continue;
        memcpy(p->out_head, m->prefix, PREFIX);
        put(p->out_head + 28, (uint64_t)move->round, 4);
        put(p->out_head + 32, (uint64_t)at, 8);
        p->out_bytes = (size_t)(end - at) * m->size;
        put(p->out_head + 40, p->out_bytes, 4);
        put(p->out_head + 44, 0, 4);
        put(p->out_head + 48, crc32_of(p->out_head, 48), 4);
        m->at[i] = end;
        p->out_move = i;
        p->out_from = at;
        p->sent = p->hashed = 0;
        hash_reset(&p->out_hash);
        return 1;
    }
    return 0;
}

static const uint8_t *outgoing(const Moves *m, const Peer *p)
{
    const Move *move = &m->moves[p->out_move];
    const uint8_t *from = move->reduce && !move->afters ? m->values : m->out;
    return from + (size_t)p->out_from * m->size;
}

/* Move bytes of a peer in both directions, once; whether any moved. */
static int both_ways(Moves *m, int which)
{
    Peer *p = &m->peers[which];
    int moved = 0;
    if (p->out_fd != NONE &&
        (p->out_move != NONE || (!p->hold && next_frame(m, which)))) {
        Send s = {p->out_fd, 0, 0, m->checked ? &p->out_hash : NULL, p->out_head,
                  outgoing(m, p), HEADER, p->out_bytes, p->sent, p->hashed, PIECE};
        send_on(&s);
        moved = s.sent > p->sent;
        p->bytes_out += s.sent - p->sent;
        p->sent = s.sent;
        p->hashed = s.hashed;
        if (s.status == 3) {
            m->why = BROKEN;
            m->which = which;
        } else if (s.sent == HEADER + p->out_bytes + (m->checked ? TRAILER : 0))
            p->out_move = NONE;
    }
    if (p->in_fd != NONE && !m->why && receive_some(m, which))
        moved = 1;
    return moved;
}

/* Whether every move is done and no frame is under way. */
static int finished(const Moves *m)
{
    for (int i = 0; i < m->move_count; i++)
        if (m->at[i] < m->moves[i].stop)
            return 0;
    for (int i = 0; i < m->peer_count; i++)
        if (m->peers[i].out_move != NONE)
            return 0;
    return 1;
}

enum { MOST_PEERS = 64 };

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

/* Go on until all is done, something else is to be done, or `budget` bytes moved.
 *
 * It polls for `watch` microseconds before it sleeps: to be woken costs the peer more.
 */
static void moves_on(Moves *m, int others, int milliseconds, int watch, uint64_t budget)
{
    struct pollfd watched[2 * MOST_PEERS + 1];
    int64_t patient = 0;
    m->why = READY;
    for (;;) {
        int moved = 0;
        uint64_t before = 0, after = 0;
        for (int i = 0; i < m->peer_count && !m->why; i++) {
            before += m->peers[i].bytes_in + m->peers[i].bytes_out;
            moved |= both_ways(m, i);
            after += m->peers[i].bytes_in + m->peers[i].bytes_out;
        }
        if (m->why || finished(m))
            return;
        budget -= after - before < budget ? after - before : budget;
        if (!budget) {
            m->why = IDLE;
            return;
        }
        if (moved) {
            patient = 0;
            continue;
        }
        if (!patient)
            patient = now() + watch;
        nfds_t count = 0;
        watched[count++] = (struct pollfd){others, POLLIN, 0};
        for (int i = 0; i < m->peer_count; i++) {
            Peer *p = &m->peers[i];
            if (p->in_fd != NONE)
                watched[count++] = (struct pollfd){p->in_fd, POLLIN, 0};
            if (p->out_fd != NONE && p->out_move != NONE)
                watched[count++] = (struct pollfd){p->out_fd, POLLOUT, 0};
        }
        int found = poll(watched, count, 0);
        if (!found && milliseconds && now() < patient) {
            sched_yield();
            continue;
        }
        if (!found && milliseconds)
            found = poll(watched, count, milliseconds);
        if (found < 0 && errno == EINTR)
            found = 0;
        if (found <= 0 || (found == 1 && watched[0].revents)) {
            m->why = IDLE;
            return;
        }
    }
}
