#include "device/child/message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/macros.h"
#include "device/child/tuning.h"

typedef union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(TOW_CHILD_FD_COUNT_MAX * sizeof(int))];
} control_t;

/* -- Sending ---------------------------------------------------------------- */

tow_child_out_t tow_child_out(const tow_child_protocol_t *protocol,
                              uint32_t type)
{
    TOW_ASSERT(type > 0 && type < protocol->type_count);
    return (tow_child_out_t){
        .header = {.magic = protocol->magic, .type = type}};
}

void tow_child_out_set(tow_child_out_t *out, size_t part, const void *bytes,
                       size_t size)
{
    TOW_ASSERT(part < TOW_CHILD_PART_COUNT && out->done_count == 0);
    out->parts[part] = bytes;
    out->header.sizes[part] = size;
}

void tow_child_out_set_status(tow_child_out_t *out, tow_status_t status)
{
    out->header.code = (uint32_t)tow_status_code(status);
    if (status == TOW_OK) return;
    const char *message = tow_status_message(status);
    tow_child_out_set(out, 0, message,
                      strnlen(message, TOW_CHILD_TEXT_BYTES_MAX));
}

/* The rest of the header and the parts. Returns how many ranges there are. */
static size_t remaining(const tow_child_out_t *out,
                        struct iovec ranges[1 + TOW_CHILD_PART_COUNT])
{
    size_t skipped = out->done_count, count = 0;
    for (size_t i = 0; i < 1 + TOW_CHILD_PART_COUNT; i++) {
        const char *bytes =
            i == 0 ? (const char *)&out->header : out->parts[i - 1];
        const size_t size =
            i == 0 ? sizeof(out->header) : (size_t)out->header.sizes[i - 1];
        if (skipped < size)
            ranges[count++] =
                (struct iovec){(char *)bytes + skipped, size - skipped};
        skipped -= skipped < size ? skipped : size;
    }
    return count;
}

/* Descriptors travel with the first byte. */
static void attach_fds(const tow_child_out_t *out, struct msghdr *message,
                       control_t *control)
{
    const size_t size = out->header.fd_count * sizeof(int);
    TOW_ASSERT(out->header.fd_count <= TOW_CHILD_FD_COUNT_MAX);
    if (size == 0 || out->done_count > 0) return;
    message->msg_control = control->bytes;
    message->msg_controllen = CMSG_SPACE(size);
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(header), out->fds, size);
}

tow_child_transfer_t tow_child_send(int fd, tow_child_out_t *out)
{
    struct iovec ranges[1 + TOW_CHILD_PART_COUNT];
    size_t range_count;
    while ((range_count = remaining(out, ranges)) > 0) {
        control_t control = {0};
        struct msghdr message = {.msg_iov = ranges, .msg_iovlen = range_count};
        attach_fds(out, &message, &control);
        const ssize_t count = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (count >= 0)
            out->done_count += (size_t)count;
        else if (errno == EAGAIN)
            return TOW_CHILD_BLOCKED;
        else if (errno != EINTR)
            return TOW_CHILD_CLOSED;
    }
    return TOW_CHILD_DONE;
}

/* -- Receiving -------------------------------------------------------------- */

static bool is_header_valid(const tow_child_header_t *header,
                            const tow_child_protocol_t *protocol)
{
    if (header->magic != protocol->magic || header->type == 0 ||
        header->type >= protocol->type_count ||
        header->fd_count > TOW_CHILD_FD_COUNT_MAX)
        return false;
    for (size_t i = 0; i < TOW_CHILD_PART_COUNT; i++)
        if (header->sizes[i] > protocol->part_bytes_max[header->type][i])
            return false;
    return true;
}

static bool make_parts(tow_child_in_t *in)
{
    for (size_t i = 0; i < TOW_CHILD_PART_COUNT; i++) {
        in->parts[i] = tow_malloc((size_t)in->header.sizes[i] + 1);
        if (in->parts[i] == NULL) return false;
        ((char *)in->parts[i])[in->header.sizes[i]] = '\0';
    }
    return true;
}

/* Where the next bytes go; NULL when all were received. */
static void *next_in(tow_child_in_t *in, size_t *out_size)
{
    size_t skipped = in->done_count;
    if (skipped < sizeof(in->header)) {
        *out_size = sizeof(in->header) - skipped;
        return (char *)&in->header + skipped;
    }
    skipped -= sizeof(in->header);
    for (size_t i = 0; i < TOW_CHILD_PART_COUNT; i++) {
        if (skipped < in->header.sizes[i]) {
            *out_size = (size_t)in->header.sizes[i] - skipped;
            return (char *)in->parts[i] + skipped;
        }
        skipped -= (size_t)in->header.sizes[i];
    }
    return NULL;
}

static void take_fds(tow_child_in_t *in, struct msghdr *message)
{
    const struct cmsghdr *header = CMSG_FIRSTHDR(message);
    for (size_t i = 0; i < TOW_CHILD_FD_COUNT_MAX; i++)
        in->fds[i] = -1;
    if (header == NULL || header->cmsg_level != SOL_SOCKET ||
        header->cmsg_type != SCM_RIGHTS)
        return;
    const size_t size = header->cmsg_len - CMSG_LEN(0);
    memcpy(in->fds, CMSG_DATA(header),
           size < sizeof(in->fds) ? size : sizeof(in->fds));
}

static ssize_t receive_some(int fd, tow_child_in_t *in, void *room, size_t size)
{
    if (!in->accepts_fds || in->done_count > 0) return recv(fd, room, size, 0);
    control_t control = {0};
    struct iovec range = {room, size};
    struct msghdr message = {.msg_iov = &range,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    const ssize_t count = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (count > 0) take_fds(in, &message);
    return count;
}

tow_child_transfer_t tow_child_receive(int fd,
                                       const tow_child_protocol_t *protocol,
                                       tow_child_in_t *in)
{
    size_t size;
    void *room;
    while ((room = next_in(in, &size)) != NULL) {
        const ssize_t count = receive_some(fd, in, room, size);
        if (count < 0 && errno == EAGAIN) return TOW_CHILD_BLOCKED;
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return TOW_CHILD_CLOSED;
        in->done_count += (size_t)count;
        if (in->done_count != sizeof(in->header)) continue;
        if (!is_header_valid(&in->header, protocol)) return TOW_CHILD_MALFORMED;
        if (!make_parts(in)) return TOW_CHILD_NO_MEMORY;
    }
    return TOW_CHILD_DONE;
}

void tow_child_in_reset(tow_child_in_t *in)
{
    for (size_t i = 0; i < TOW_CHILD_PART_COUNT; i++)
        tow_free(in->parts[i]);
    *in = (tow_child_in_t){.accepts_fds = in->accepts_fds};
}

void *tow_child_in_take(tow_child_in_t *in, size_t part)
{
    void *bytes = in->parts[part];
    in->parts[part] = NULL;
    return bytes;
}

tow_status_t tow_child_in_status(const tow_child_in_t *in)
{
    const char *message = in->parts[0];
    if (in->header.code == TOW_CODE_OK) return TOW_OK;
    if (in->header.code > TOW_UNAUTHENTICATED)
        return TOW_ERROR(TOW_INTERNAL,
                         "a child process replied with status code %u, which "
                         "does not exist",
                         in->header.code);
    return TOW_ERROR((tow_code_t)in->header.code, "%s",
                     message[0] != '\0' ? message : "no message");
}
