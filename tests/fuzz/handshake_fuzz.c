/* Input: a byte of flags, then either the bytes of a hostile peer, or changes
 * made by a man in the middle between two honest peers. A peer without the
 * token must be refused, and honest peers must agree on their parameters. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "fuzz.h"
#include "wire/frame.h"
#include "wire/handshake.h"

enum {
    LISTENER = 1, /* the side that is attacked, or whose bytes are changed */
    MEND = 2,     /* correct the checksums */
    BETWEEN = 4,  /* changes between honest peers */
    BOUND = 8,    /* under TLS */
    PIECES = 16,  /* bytes arrive one by one */
};

#define STREAM_BYTES_MAX 2048

typedef struct side {
    tow_handshake_options_t options;
    tow_handshake_t *machine;
    tow_handshake_state_t state;
    uint8_t sent[STREAM_BYTES_MAX];
    size_t sent_count;
    size_t delivered_count;
} side_t;

static tow_security_t security = {.has_token = true, .token = {{1, 2, 3}}};

static void start(side_t *side, tow_side_t which, uint8_t choices)
{
    bool dials = which == TOW_SIDE_DIALLER;
    memset(side, 0, sizeof(*side));
    tow_handshake_options_t *options = &side->options;
    options->side = which;
    options->security = &security;
    options->has_binding = (choices & BOUND) != 0;
    options->self.incarnation = dials ? 7 : 8;
    options->self.features = 0xff;
    snprintf(options->self.name, sizeof(options->self.name), "%s",
             dials ? "worker/1" : "controller");
    snprintf(options->self.software, sizeof(options->self.software), "fuzz");
    memset(options->nonce, dials ? 0x11 : 0x22, TOW_NONCE_SIZE);
    tow_status_t status = tow_handshake_create(options, &side->machine);
    TOW_ASSERT(status == TOW_OK);
    side->state = TOW_HANDSHAKE_MORE;
}

static void collect(side_t *side)
{
    const uint8_t *bytes;
    size_t count;
    tow_handshake_take_output(side->machine, &bytes, &count);
    TOW_ASSERT(count <= STREAM_BYTES_MAX - side->sent_count);
    memcpy(side->sent + side->sent_count, bytes, count);
    side->sent_count += count;
}

static size_t feed(side_t *side, const uint8_t *bytes, size_t count)
{
    size_t consumed;
    side->state = tow_handshake_feed(side->machine, bytes, count, &consumed);
    TOW_ASSERT(consumed <= count);
    TOW_ASSERT(side->state != TOW_HANDSHAKE_MORE || consumed == count);
    collect(side);
    return consumed;
}

static void stop(side_t *side)
{
    if (side->state == TOW_HANDSHAKE_MORE)
        side->state = tow_handshake_end(side->machine);
    if (side->state == TOW_HANDSHAKE_FAILED) {
        tow_status_t error = tow_handshake_error(side->machine);
        const char *message = tow_status_message(error);
        for (; *message != '\0'; message++)
            TOW_ASSERT(*message >= 0x20 && *message < 0x7f);
        tow_status_release(error);
    }
    tow_handshake_destroy(side->machine);
}

static uint32_t load_u32(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static void mend(uint8_t *stream, size_t count)
{
    size_t at = TOW_PREFACE_SIZE;
    while (at + TOW_FRAME_HEADER_SIZE <= count) {
        uint8_t *frame = stream + at;
        uint32_t size = load_u32(frame);
        if (size > count - at - TOW_FRAME_HEADER_SIZE) return;
        tow_frame_seal(frame, (uint16_t)(frame[4] | frame[5] << 8), size);
        at += TOW_FRAME_HEADER_SIZE + size;
    }
}

static void attack(uint8_t choices, const uint8_t *bytes, size_t count)
{
    static side_t victim;
    start(&victim, choices & LISTENER ? TOW_SIDE_LISTENER : TOW_SIDE_DIALLER,
          choices);
    uint8_t *stream = malloc(count + (count == 0));
    TOW_ASSERT(stream != NULL);
    memcpy(stream, bytes, count);
    if (choices & MEND) mend(stream, count);
    size_t at = 0, piece = choices & PIECES ? 1 : count;
    while (at < count && victim.state == TOW_HANDSHAKE_MORE)
        at += feed(&victim, stream + at, piece);
    TOW_ASSERT(victim.state != TOW_HANDSHAKE_DONE);
    stop(&victim);
    free(stream);
}

/* Input: triples of an offset (two bytes) and the byte to xor there. */
static void change(side_t *side, size_t from, uint8_t choices,
                   const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i + 3 <= count; i += 3) {
        size_t place = bytes[i] | (size_t)bytes[i + 1] << 8;
        if (place >= from && place < side->sent_count)
            side->sent[place] ^= bytes[i + 2];
    }
    if (choices & MEND) mend(side->sent, side->sent_count);
}

static bool deliver(side_t *from, side_t *to)
{
    size_t count = from->sent_count - from->delivered_count;
    if (count == 0 || to->state != TOW_HANDSHAKE_MORE) return false;
    from->delivered_count +=
        feed(to, from->sent + from->delivered_count, count);
    return true;
}

static void check_story(const side_t *side, const side_t *other)
{
    const tow_identity_t *told = tow_handshake_peer(side->machine);
    const tow_identity_t *truth = &other->options.self;
    TOW_ASSERT(strcmp(told->name, truth->name) == 0);
    TOW_ASSERT(strcmp(told->software, truth->software) == 0);
    TOW_ASSERT(told->incarnation == truth->incarnation);
    TOW_ASSERT(told->features == truth->features);
}

static void stand_between(uint8_t choices, const uint8_t *bytes, size_t count)
{
    static side_t sides[2];
    start(&sides[0], TOW_SIDE_DIALLER, choices);
    start(&sides[1], TOW_SIDE_LISTENER, choices);
    collect(&sides[0]);
    side_t *changed = &sides[choices & LISTENER ? 1 : 0];
    bool progress = true;
    while (progress) {
        progress = false;
        for (int i = 0; i < 2; i++) {
            size_t before = sides[!i].sent_count;
            if (&sides[i] == changed)
                change(changed, changed->delivered_count, choices, bytes,
                       count);
            if (deliver(&sides[i], &sides[!i])) progress = true;
            TOW_ASSERT(sides[!i].sent_count >= before);
        }
    }
    if (sides[0].state == TOW_HANDSHAKE_DONE) check_story(&sides[0], &sides[1]);
    if (sides[1].state == TOW_HANDSHAKE_DONE) check_story(&sides[1], &sides[0]);
    stop(&sides[0]);
    stop(&sides[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0) return 0;
    uint8_t choices = bytes[0];
    if (choices & BETWEEN)
        stand_between(choices, bytes + 1, count - 1);
    else
        attack(choices, bytes + 1, count - 1);
    return 0;
}
