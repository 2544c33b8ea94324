/* The moves of several reductions in one loop: frames of them to and from their peers.
 *
 * A frame of anything else ends the loop, which then gives its bytes to the caller; a
 * frame that is under way stays here.
 */
/* Whether the moves that are to save what is in [from, end) have done so. */
static int saved(const Job *job, const Move *move, int64_t from, int64_t end)
{
    if (!job->in_place || move->saves)
        return 1;
    for (int i = 0; i < job->move_count; i++) {
        const Move *other = &job->moves[i];
        int64_t stop = other->stop < end ? other->stop : end;
        if (other->saves && other->start < end && from < other->stop && job->here[i] < stop)
            return 0;
    }
    return 1;
}

/* Begin a DATA frame of a job, if the header that has come is one that is due. */
static int begin_data(Job *job, Peer *p, int which)
{
    const uint8_t *head = p->head;
    uint64_t round = got(head + 28, 4), from = got(head + 32, 8);
    size_t length = (size_t)got(head + 40, 4);
    if (crc32_of(head, 48) != got(head + 48, 4) || length % job->size ||
        (job->checked && length < LEAST) || !length)
        return 0;
    for (int i = 0; i < job->move_count; i++) {
        const Move *move = &job->moves[i];
        if (move->sends || move->peer != which || (uint64_t)move->round != round ||
            (uint64_t)job->here[i] != from ||
            (int64_t)(length / job->size) > move->stop - job->here[i] ||
            !saved(job, move, job->here[i], job->here[i] + (int64_t)(length / job->size)))
            continue;
        p->in_job = job;
        p->in_move = i;
        p->in_at = p->in_from = job->here[i];
        p->in_stop = p->in_at + (int64_t)(length / job->size);
        p->in_left = length;
        p->fill = p->trailer_fill = 0;
        hash_reset(&p->in_hash);
        if (job->in_place && move->saves)
            copy_past(place(job, job->out, p->in_at), place(job, job->values, p->in_at),
                      length);
        if (!job->first_at)
            job->first_at = now();
        return 1;
    }
    return 0;
}

/* Begin the frame whose header has come; 0 if it is of something else. */
static int begin_frame(Moves *m, int which)
{
    Peer *p = &m->peers[which];
    const uint64_t bit = 1ull << which;
    int known = 0;
    for (int i = 0; i < m->job_count && !known; i++) {
        Job *job = m->jobs[i];
        if (!memcmp(p->head, job->prefix, PREFIX))
            known = begin_data(job, p, which);
        else if (job->votes && !(job->opened & bit)) {
            known = !memcmp(p->head, job->open, HEADER);
            if (known) {
                p->in_job = job;
                p->in_move = OPENING;
                p->in_left = job->open_bytes - HEADER;
                p->fill = 0;
            }
        } else if (job->votes && !(job->heard & bit)) {
            known = !memcmp(p->head, job->vote, HEADER);
            job->heard |= known ? bit : 0;
        }
    }
    if (known) {
        memcpy(p->frame, p->head, HEADER);
        p->head_fill = 0;
    }
    return known;
}

/* Take bytes of the payload that are in their room. */
static void payload_came(Peer *p, size_t count)
{
    p->in_left -= count;
    if (p->in_move == OPENING) {
        p->fill += count;
        return;
    }
    Job *job = p->in_job;
    const Move *move = &job->moves[p->in_move];
    uint8_t *out = place(job, result_of(job), p->in_at);
    if (!move->reduce) { /* `fill` are bytes behind in_at */
        if (job->checked)
            hash_update(&p->in_hash, out + p->fill, count);
        p->fill += count;
        return;
    }
    if (job->checked)
        hash_update(&p->in_hash, p->scratch + p->fill, count);
    size_t whole = (p->fill + count) / job->size, bytes = whole * job->size;
    const uint8_t *here = place(job, job->values, p->in_at);
    job->sum(out, job->came_first ? p->scratch : here,
             job->came_first ? here : p->scratch, whole);
    if (job->mean && move->ends)
        divide(out, whole, job->code, job->mean);
    p->in_at += (int64_t)whole;
    p->fill += count - bytes;
    memmove(p->scratch, p->scratch + bytes, p->fill);
}

/* The frame is whole: what it brought may go on, if it is not damaged.
 *
 * 0 if it is, or is an OPEN frame that differs from this member's.
 */
static int end_frame(Moves *m, int which)
{
    Peer *p = &m->peers[which];
    Job *job = p->in_job;
    if (p->in_move == OPENING) {
        m->why = FOREIGN;
        if (memcmp(p->scratch, job->open + HEADER, p->fill))
            return 0;
        m->why = READY;
        job->opened |= 1ull << which;
        job->opened_at[which] = now();
    } else {
        m->why = DAMAGED;
        if (job->checked && (uint32_t)hash_digest(&p->in_hash) != got(p->trailer, TRAILER))
            return 0;
        m->why = READY;
        job->at[p->in_move] = job->here[p->in_move] = p->in_stop;
        job->done += p->in_stop - p->in_from;
    }
    p->in_move = NONE;
    return 1;
}

static size_t part(size_t *count, size_t want)
{
    size_t taken = *count < want ? *count : want;
    *count -= taken;
    return taken;
}

/* One system call; the bytes that came, or why there are none. */
static size_t receive_some(Moves *m, int which)
{
    Peer *p = &m->peers[which];
    struct iovec parts[3];
    struct msghdr message = {0};
    size_t piece = 0, tail = 0, head = HEADER - p->head_fill, count = 0;
    const int trailed = p->in_move >= 0 && p->in_job->checked;
    if (p->in_move != NONE) {
        uint8_t *to = p->scratch + p->fill;
        piece = PIECE - p->fill;
        if (p->in_move >= 0 && !p->in_job->moves[p->in_move].reduce) {
            to = place(p->in_job, result_of(p->in_job), p->in_at) + p->fill;
            piece = PIECE;
        }
        if (piece > p->in_left)
            piece = p->in_left;
        if (piece)
            parts[count++] = (struct iovec){to, piece};
        tail = trailed && piece == p->in_left ? TRAILER - p->trailer_fill : 0;
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
        size_t bytes = part(&left, piece);
        if (bytes)
            payload_came(p, bytes);
        p->trailer_fill += part(&left, tail);
        if (p->in_left || (trailed && p->trailer_fill < TRAILER))
            return (size_t)came;
        p->head_fill = left;
        if (!end_frame(m, which)) {
            m->which = which;
            return (size_t)came;
        }
    } else
        p->head_fill += left;
    if (p->head_fill == HEADER && !begin_frame(m, which)) {
        m->why = FOREIGN;
        m->which = which;
    }
    return (size_t)came;
}

/* Begin a frame of what a job has ready for a peer, if it is worth it. */
static int next_data(Job *job, Peer *p, int which)
{
    const int64_t least = 1024; /* never few elements: checksums need some bytes */
    for (int i = 0; i < job->move_count; i++) {
        const Move *move = &job->moves[i];
        int64_t at = job->at[i], stop = move->stop;
        if (!move->sends || move->peer != which || at == stop)
            continue;
        int64_t end = reached(job, move, at, stop);
        if (end - at < job->step && end < stop)
            continue;
        if (end > at + job->step)
            end = at + job->step;
        if (end < stop && stop - end < least)
            end = stop - at > 2 * least ? stop - least : stop;
        if (end > reached(job, move, at, stop))
            continue;
        memcpy(p->out_head, job->prefix, PREFIX);
        put(p->out_head + 28, (uint64_t)move->round, 4);
        put(p->out_head + 32, (uint64_t)at, 8);
        p->out_bytes = (size_t)(end - at) * job->size;
        put(p->out_head + 40, p->out_bytes, 4);
        put(p->out_head + 44, 0, 4);
        put(p->out_head + 48, crc32_of(p->out_head, 48), 4);
        job->at[i] = end;
        p->out_move = i;
        p->out_from = at;
        hash_reset(&p->out_hash);
        return 1;
    }
    return 0;
}

/* Begin a frame to a peer: of the first job that has one. */
static int next_frame(Moves *m, int which)
{
    Peer *p = &m->peers[which];
    const uint64_t bit = 1ull << which;
    p->sent = p->hashed = 0;
    for (int i = 0; i < m->job_count; i++) {
        Job *job = p->out_job = m->jobs[i];
        if (job->voted && !(job->said & bit)) {
            memcpy(p->out_head, job->vote, HEADER);
            p->out_move = VOTE;
            p->out_bytes = 0;
            return 1;
        }
        if ((job->opened & bit) && next_data(job, p, which))
            return 1;
    }
    return 0;
}

static const uint8_t *outgoing(const Peer *p)
{
    const Job *job = p->out_job;
    if (p->out_move == VOTE)
        return job->vote; /* of which no bytes are the payload */
    const Move *move = &job->moves[p->out_move];
    uint8_t *from = move->reduce && !move->afters ? job->values : result_of(job);
    return place(job, from, p->out_from);
}

/* Move bytes of a peer in both directions, once; whether any moved. */
static int both_ways(Moves *m, int which)
{
    Peer *p = &m->peers[which];
    int moved = 0;
    if (p->out_fd != NONE && (p->out_move != NONE || next_frame(m, which))) {
        int checked = p->out_move != VOTE && p->out_job->checked;
        Send s = {p->out_fd, 0, 0, checked ? &p->out_hash : NULL, p->out_head,
                  outgoing(p), HEADER, p->out_bytes, p->sent, p->hashed, PIECE};
        send_on(&s);
        moved = s.sent > p->sent;
        p->bytes_out += s.sent - p->sent;
        p->sent = s.sent;
        p->hashed = s.hashed;
        if (s.status == 3) {
            m->why = BROKEN;
            m->which = which;
        } else if (s.sent == HEADER + p->out_bytes + (checked ? TRAILER : 0)) {
            p->out_job->said |= p->out_move == VOTE ? 1ull << which : 0;
            p->out_move = NONE;
        }
    }
    if (p->in_fd != NONE && !m->why && receive_some(m, which))
        moved = 1;
    return moved;
}

/* Whether a frame of a job is under way to a peer. */
static int sending(const Moves *m, const Job *job)
{
    for (int i = 0; i < m->peer_count; i++)
        if (m->peers[i].out_move != NONE && m->peers[i].out_job == job)
            return 1;
    return 0;
}

/* Vote when every move of a job is done; it is over when all have voted. */
static void progress(Moves *m, Job *job)
{
    for (int i = 0; i < job->move_count && !job->moved; i++)
        if (job->at[i] < job->moves[i].stop)
            return;
    if (job->over || (!job->moved && sending(m, job)))
        return;
    job->moved = 1;
    if (job->votes && !job->voted && job->opened == job->everyone) {
        job->voted = 1;
        job->voted_at = now();
    }
    job->over = !job->votes || (job->voted && job->said == job->everyone &&
                                job->heard == job->everyone && !sending(m, job));
}

/* Go on until a job is over, something else is to be done, or `budget` bytes moved.
 *
 * It polls for `watch` microseconds before it sleeps: to be woken costs the peer more.
 */
static void moves_on(Moves *m, int others, int milliseconds, int watch, uint64_t budget)
{
    struct pollfd watched[2 * MOST_PEERS + 1];
    int64_t patient = 0;
    m->why = READY;
    m->others = 0;
    for (;;) {
        int moved = 0, over = 0;
        uint64_t before = 0, after = 0;
        for (int i = 0; i < m->peer_count && !m->why; i++) {
            before += m->peers[i].bytes_in + m->peers[i].bytes_out;
            moved |= both_ways(m, i);
            after += m->peers[i].bytes_in + m->peers[i].bytes_out;
        }
        for (int i = 0; i < m->job_count; i++) {
            int voted = m->jobs[i]->voted;
            progress(m, m->jobs[i]);
            over |= m->jobs[i]->over;
            moved |= m->jobs[i]->voted != voted;
        }
        if (m->why || over || !m->job_count)
            return;
        budget -= after - before < budget ? after - before : budget;
        if (!budget) {
            m->why = IDLE;
            m->others = 1;
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
            m->others = watched[0].revents != 0 || found < 0;
            return;
        }
    }
}
