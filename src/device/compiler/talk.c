#include "device/compiler/talk_impl.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "device/compiler/tuning.h"
#include "device/options.h"
#include "wire/message.h"

/* -- Out -------------------------------------------------------------------- */

/* The next bytes to send; NULL when all have left. */
static const void *next_out(const talk_out_t *out, size_t *out_size)
{
    size_t skipped = out->done_count;
    if (skipped < sizeof(out->header)) {
        *out_size = sizeof(out->header) - skipped;
        return (const char *)&out->header + skipped;
    }
    skipped -= sizeof(out->header);
    for (size_t i = 0; i < TALK_PART_COUNT; i++) {
        if (skipped < out->header.sizes[i]) {
            *out_size = (size_t)out->header.sizes[i] - skipped;
            return (const char *)out->parts[i] + skipped;
        }
        skipped -= (size_t)out->header.sizes[i];
    }
    return NULL;
}

talk_result_t tow_talk_send(int fd, talk_out_t *out)
{
    size_t size;
    const void *bytes;
    while ((bytes = next_out(out, &size)) != NULL) {
        ssize_t count = send(fd, bytes, size, MSG_NOSIGNAL);
        if (count >= 0)
            out->done_count += (size_t)count;
        else if (errno == EAGAIN)
            return TALK_WAIT;
        else if (errno != EINTR)
            return TALK_OVER;
    }
    return TALK_DONE;
}

/* -- In --------------------------------------------------------------------- */

static bool is_header_sound(const talk_header_t *header)
{
    static const uint64_t max[][TALK_PART_COUNT] = {
        [TALK_REQUEST] = {TOW_NAME_MAX, TOW_COMPILE_OPTIONS_BYTES_MAX,
                          TOW_COMPILER_PROGRAM_BYTES_MAX},
        [TALK_READY] = {TOW_COMPILER_MESSAGE_BYTES_MAX},
        [TALK_REPLY] = {TOW_COMPILER_MESSAGE_BYTES_MAX, TOW_SIGNATURE_BYTES_MAX,
                        TOW_COMPILER_EXECUTABLE_BYTES_MAX},
        [TALK_QUESTION] = {0, TOW_QUESTION_BYTES_MAX},
        [TALK_ANSWER] = {TOW_COMPILER_MESSAGE_BYTES_MAX, TOW_ANSWER_BYTES_MAX},
    };
    if (header->magic != TALK_MAGIC || header->type < TALK_REQUEST ||
        header->type >= TOW_COUNT_OF(max))
        return false;
    for (size_t i = 0; i < TALK_PART_COUNT; i++)
        if (header->sizes[i] > max[header->type][i]) return false;
    return true;
}

static bool make_parts(talk_in_t *in)
{
    for (size_t i = 0; i < TALK_PART_COUNT; i++) {
        in->parts[i] = tow_malloc((size_t)in->header.sizes[i] + 1);
        if (in->parts[i] == NULL) return false;
        ((char *)in->parts[i])[in->header.sizes[i]] = '\0';
    }
    return true;
}

/* Where the next bytes go; NULL when all have come. */
static void *next_in(talk_in_t *in, size_t *out_size)
{
    size_t skipped = in->done_count;
    if (skipped < sizeof(in->header)) {
        *out_size = sizeof(in->header) - skipped;
        return (char *)&in->header + skipped;
    }
    skipped -= sizeof(in->header);
    for (size_t i = 0; i < TALK_PART_COUNT; i++) {
        if (skipped < in->header.sizes[i]) {
            *out_size = (size_t)in->header.sizes[i] - skipped;
            return (char *)in->parts[i] + skipped;
        }
        skipped -= (size_t)in->header.sizes[i];
    }
    return NULL;
}

talk_result_t tow_talk_receive(int fd, talk_in_t *in)
{
    size_t size;
    void *room;
    while ((room = next_in(in, &size)) != NULL) {
        ssize_t count = recv(fd, room, size, 0);
        if (count < 0 && errno == EAGAIN) return TALK_WAIT;
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return TALK_OVER;
        in->done_count += (size_t)count;
        if (in->done_count != sizeof(in->header)) continue;
        if (!is_header_sound(&in->header)) return TALK_GARBAGE;
        if (!make_parts(in)) return TALK_MEMORY;
    }
    return TALK_DONE;
}

void tow_talk_reset(talk_in_t *in)
{
    for (size_t i = 0; i < TALK_PART_COUNT; i++)
        tow_free(in->parts[i]);
    *in = (talk_in_t){0};
}

void *tow_talk_take(talk_in_t *in, size_t part)
{
    void *bytes = in->parts[part];
    in->parts[part] = NULL;
    return bytes;
}
