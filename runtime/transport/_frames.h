/* Frames for the compiled loops: the layout of a header, and what sends one.
 *
 * The frames are those of `frame.py`.
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

enum { HEADER = 52, PREFIX = 28, TRAILER = 4 };

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
