/* One peer: handshake, slots in both directions, credits, and closing. */
#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "collective/multi_host/letters_impl.h"

#define SLOTS_ALL ((uint32_t)((UINT64_C(1) << TOW_MULTI_HOST_SLOT_COUNT) - 1))

_Static_assert(TOW_MULTI_HOST_SLOT_COUNT >= 2 &&
                   TOW_MULTI_HOST_SLOT_COUNT <= 32,
               "a credit has 32 bits for slots");
_Static_assert(sizeof(hello_t) == 72, "part of the protocol");

static uint64_t tag_of(tag_kind_t kind, size_t stream, uint32_t slots)
{
    return (uint64_t)kind << 56 | (uint64_t)stream << 32 | slots;
}

/* Streams of a process: one per device, and one for aborts. */
static size_t stream_count(uint32_t device_count)
{
    return (size_t)device_count + 1;
}

static size_t slot_total(const tow_letters_peer_t *peer)
{
    return stream_count(peer->device_count) * TOW_MULTI_HOST_SLOT_COUNT;
}

/* Behind the slots: the unused target of credits and probes. */
static uint64_t scratch_offset(uint32_t device_count)
{
    return stream_count(device_count) * TOW_MULTI_HOST_SLOT_COUNT *
           (uint64_t)TOW_MULTI_HOST_SLOT_BYTES;
}

static void heard(tow_letters_peer_t *peer)
{
    peer->heard_ns = tow_env_now_ns(peer->letters->env);
}

/* Envelopes of a failed box are returned when it is closed. */
static void strand_envelopes(tow_letters_peer_t *peer)
{
    tow_letters_t *letters = peer->letters;
    const size_t count = stream_count(letters->options.device_count);
    for (size_t i = 0; peer->is_awake && i < count; i++) {
        tow_list_t *item;
        while ((item = tow_list_pop_front(&peer->outs[i].waiting)) != NULL) {
            tow_envelope_t *envelope =
                TOW_CONTAINER_OF(item, tow_envelope_t, list);
            if (envelope->box == NULL)
                letters_return(letters, envelope);
            else
                tow_list_append(&letters->unrouted, item);
        }
    }
}

/* No more data is exchanged with it. */
static void peer_break(tow_letters_peer_t *peer, tow_status_t take_cause)
{
    if (peer->is_failed || peer->is_retired) {
        tow_status_ignore(take_cause, "the first cause counts");
        return;
    }
    peer->is_failed = true;
    peer->cause =
        tow_status_annotate(take_cause, "process %" PRIu32, peer->process_id);
    tow_env_timer_stop(peer->letters->env, &peer->hello_timer);
    strand_envelopes(peer);
    letters_peer_failed(peer);
}

/* Starts a control write. False if it cannot be sent now. */
static bool start_write(tow_letters_peer_t *peer, tow_write_t *write)
{
    if (peer->lane == NULL || peer->is_failed || peer->is_retired) return false;
    if (tow_lane_write(peer->lane, write) != TOW_SEND_OK) return false;
    peer->writing_count++;
    return true;
}

/* Each completion begins with this. False if nothing is left to do. */
static bool end_write(tow_letters_peer_t *peer, tow_status_t take_status)
{
    peer->writing_count--;
    if (peer->is_retired || peer->is_failed) {
        tow_status_ignore(take_status, "the peer is given up already");
        letters_peer_gone(peer->letters);
        return false;
    }
    if (take_status != TOW_OK) {
        peer_break(peer, take_status);
        return false;
    }
    heard(peer);
    return true;
}

/* -- Hello ----------------------------------------------------------------- */

uint64_t hello_check(const hello_t *hello)
{
    return tow_hash_bytes(hello, offsetof(hello_t, check), HELLO_MAGIC);
}

static void greet(tow_letters_peer_t *peer);

static void greeted(tow_write_t *write, tow_status_t take_status)
{
    tow_letters_peer_t *peer =
        TOW_CONTAINER_OF(write, tow_letters_peer_t, hello_write);
    peer->is_greeting = false;
    /* Its hello region may not exist, or not yet: the timer retries, and the
     * timeout ends it. Only a broken lane is final. */
    if (take_status != TOW_OK && !peer->is_failed && !peer->is_retired) {
        tow_status_ignore(take_status, "asked again by the timer");
        peer->writing_count--;
        return;
    }
    if (!end_write(peer, take_status)) return;
    if (peer->must_greet) greet(peer);
}

static void greet(tow_letters_peer_t *peer)
{
    tow_letters_t *letters = peer->letters;
    peer->must_greet = peer->is_greeting;
    if (peer->is_greeting) return;
    peer->hello = (hello_t){.magic = HELLO_MAGIC,
                            .process_id = letters->options.process_id,
                            .device_count = letters->options.device_count,
                            .session = peer->session,
                            .your_session = peer->their_session,
                            .slots = tow_region_key(peer->region),
                            .slot_bytes = TOW_MULTI_HOST_SLOT_BYTES,
                            .slot_count = TOW_MULTI_HOST_SLOT_COUNT,
                            .wants_answer = !peer->has_answered};
    peer->hello.check = hello_check(&peer->hello);
    peer->hello_write = (tow_write_t){
        .bytes = &peer->hello,
        .size = sizeof(peer->hello),
        .key = peer->door,
        .offset = letters->options.process_id % TOW_MULTI_HOST_DOOR_COUNT *
                  sizeof(hello_t),
        .tag = tag_of(TAG_HELLO, 0, 0),
        .check = TOW_WRITE_CRC32C,
        .done = greeted,
    };
    peer->is_greeting = start_write(peer, &peer->hello_write);
}

static void greet_again(tow_timer_t *timer)
{
    tow_letters_peer_t *peer =
        TOW_CONTAINER_OF(timer, tow_letters_peer_t, hello_timer);
    tow_env_t *env = peer->letters->env;
    greet(peer);
    if (peer->is_failed || peer->has_answered) return;
    peer->hello_delay_ns *= 2;
    if (peer->hello_delay_ns > TOW_MULTI_HOST_HELLO_MAX_NS)
        peer->hello_delay_ns = TOW_MULTI_HOST_HELLO_MAX_NS;
    tow_env_timer_start(env, timer, tow_env_now_ns(env) + peer->hello_delay_ns);
}

static void go_on(tow_letters_peer_t *peer);

static void come_up(tow_letters_peer_t *peer, const hello_t *hello)
{
    peer->their_session = hello->session;
    peer->their_slots = hello->slots;
    letters_tell_aborts(peer);
    go_on(peer);
}

static bool speaks_our_way(tow_letters_peer_t *peer, const hello_t *hello)
{
    if (hello->slot_bytes == TOW_MULTI_HOST_SLOT_BYTES &&
        hello->slot_count == TOW_MULTI_HOST_SLOT_COUNT &&
        hello->device_count == peer->device_count)
        return true;
    peer_break(peer,
               TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "it has %" PRIu32 " slots of %" PRIu32
                         " bytes for each of %" PRIu32 " devices, we expect %d "
                         "of %u for %" PRIu32 ": run one version everywhere",
                         hello->slot_count, hello->slot_bytes,
                         hello->device_count, TOW_MULTI_HOST_SLOT_COUNT,
                         TOW_MULTI_HOST_SLOT_BYTES, peer->device_count));
    return false;
}

void peer_hear_hello(tow_letters_peer_t *peer, const hello_t *hello)
{
    peer_wake(peer);
    if (peer->is_failed || peer->is_here || !speaks_our_way(peer, hello))
        return;
    heard(peer);
    const bool knows_us = hello->your_session == peer->session;
    if (!knows_us && hello->your_session != 0) {
        greet(peer); /* It addresses an earlier session of ours. */
        return;
    }
    if (peer->their_session == 0) {
        come_up(peer, hello);
    } else if (peer->their_session != hello->session) {
        peer_break(peer, TOW_ERROR(TOW_UNAVAILABLE,
                                   "it has begun anew with us: remove it and "
                                   "add it again"));
        return;
    }
    if (knows_us) {
        peer->has_answered = true;
        tow_env_timer_stop(peer->letters->env, &peer->hello_timer);
    }
    if (hello->wants_answer != 0) greet(peer);
}

/* -- Reading --------------------------------------------------------------- */

static void credit_done(tow_write_t *write, tow_status_t take_status);

/* The writer gets its slots back half of them at a time. It cannot starve,
 * because we read its letters in the order in which it wrote them. */
static void repay(in_stream_t *stream)
{
    tow_letters_peer_t *peer = stream->peer;
    if (stream->is_telling || !peer_is_up(peer) ||
        __builtin_popcount(stream->owed_slots) < TOW_MULTI_HOST_SLOT_COUNT / 2)
        return;
    stream->credit = (tow_write_t){
        .bytes = peer->scratch,
        .size = sizeof(peer->scratch),
        .key = peer->their_slots,
        .offset = scratch_offset(peer->letters->options.device_count),
        .tag = tag_of(TAG_CREDIT, (size_t)(stream - peer->ins),
                      stream->owed_slots),
        .done = credit_done,
    };
    if (!start_write(peer, &stream->credit)) return; /* `writable` tries. */
    stream->is_telling = true;
    stream->owed_slots = 0;
}

static void credit_done(tow_write_t *write, tow_status_t take_status)
{
    in_stream_t *stream = TOW_CONTAINER_OF(write, in_stream_t, credit);
    stream->is_telling = false;
    if (end_write(stream->peer, take_status)) repay(stream);
}

void tow_letters_release(tow_letter_t *letter)
{
    tow_letters_peer_t *peer = letter->peer;
    TOW_ASSERT(letter->is_held);
    letter->is_held = false;
    peer->held_count--;
    peer->letters->stats.unread_count--;
    if (peer->is_retired) {
        letters_peer_gone(peer->letters);
        return;
    }
    in_stream_t *stream = &peer->ins[letter->slot / TOW_MULTI_HOST_SLOT_COUNT];
    stream->owed_slots |= UINT32_C(1)
                          << letter->slot % TOW_MULTI_HOST_SLOT_COUNT;
    repay(stream);
}

static void flush(tow_letters_peer_t *peer);

/* The lane is writable, or has just connected: letters may be queued, and
 * credits too, because its letters may have come before its hello. */
static void go_on(tow_letters_peer_t *peer)
{
    flush(peer);
    for (size_t i = 0; i < stream_count(peer->device_count); i++)
        repay(&peer->ins[i]);
}

static void nonsense(tow_letters_peer_t *peer, const char *what)
{
    peer_break(peer, TOW_ERROR(TOW_DATA_LOSS, "it talks nonsense: %s", what));
}

static void take_credit(tow_letters_peer_t *peer, uint64_t tag)
{
    const size_t index = tag >> 32 & 0xffffff;
    const uint32_t slots = (uint32_t)tag;
    if (index >= stream_count(peer->letters->options.device_count)) {
        nonsense(peer, "a credit for a device that we do not have");
        return;
    }
    out_stream_t *stream = &peer->outs[index];
    if ((slots & ~SLOTS_ALL) != 0 || (slots & stream->free_slots) != 0) {
        nonsense(peer, "a credit for a slot that is free");
        return;
    }
    stream->free_slots |= slots;
    flush(peer);
}

static void take_letter(tow_letters_peer_t *peer, const tow_arrival_t *arrival)
{
    const uint64_t slot = arrival->offset / TOW_MULTI_HOST_SLOT_BYTES;
    if (arrival->offset % TOW_MULTI_HOST_SLOT_BYTES != 0 ||
        slot >= slot_total(peer) || peer->slots[slot].is_held) {
        nonsense(peer, "a letter that is not in a free slot");
        return;
    }
    tow_letter_t *letter = &peer->slots[slot];
    const tow_letter_head_t *head = letter->head;
    if (arrival->size < sizeof(*head) ||
        arrival->size - sizeof(*head) != head->size) {
        nonsense(peer, "a letter of another size than its head says");
        return;
    }
    tow_letters_t *letters = peer->letters;
    letter->is_held = true;
    peer->held_count++;
    letters->stats.unread_count++;
    letters->stats.arrived_count++;
    const uint32_t kind = head->kind;
    if (kind == LETTER_OF_BOX) {
        letters_sort(letters, letter);
        return;
    }
    if (kind == LETTER_ABORT) letters_hear_abort(letters, letter);
    tow_letters_release(letter);
    if (kind != LETTER_ABORT) nonsense(peer, "a letter of unknown kind");
}

static void arrived(void *context, tow_region_t *region,
                    const tow_arrival_t *arrival)
{
    (void)region;
    tow_letters_peer_t *peer = context;
    if (peer->is_failed || peer->is_retired) return;
    heard(peer);
    switch ((tag_kind_t)(arrival->tag >> 56)) {
    case TAG_LETTER: take_letter(peer, arrival); return;
    case TAG_CREDIT: take_credit(peer, arrival->tag); return;
    case TAG_PROBE: return;
    case TAG_HELLO: break;
    }
    nonsense(peer, "a write of unknown kind");
}

/* -- Writing --------------------------------------------------------------- */

static out_stream_t *stream_of(tow_letters_peer_t *peer,
                               const tow_envelope_t *envelope)
{
    const uint32_t device_count = peer->letters->options.device_count;
    if (envelope->head.kind != LETTER_OF_BOX) return &peer->outs[device_count];
    const int64_t device = envelope->head.from % TOW_XLA_PROCESS_STRIDE;
    TOW_ASSERT(device >= 0 && device < device_count);
    return &peer->outs[device];
}

static void written(tow_write_t *write, tow_status_t take_status)
{
    tow_envelope_t *envelope = TOW_CONTAINER_OF(write, tow_envelope_t, write_);
    tow_letters_peer_t *peer = envelope->peer_;
    tow_letters_t *letters = peer->letters;
    tow_list_remove(&envelope->list);
    (void)end_write(peer, take_status);
    letters_return(letters, envelope);
}

/* False if the lane is not writable. */
static bool write_letter(tow_letters_peer_t *peer, out_stream_t *stream,
                         tow_envelope_t *envelope)
{
    const uint32_t slot = (uint32_t)__builtin_ctz(stream->free_slots);
    const size_t index =
        (size_t)(stream - peer->outs) * TOW_MULTI_HOST_SLOT_COUNT + slot;
    envelope->peer_ = peer;
    envelope->write_ = (tow_write_t){
        .bytes = &envelope->head,
        .size = sizeof(envelope->head) + envelope->head.size,
        .key = peer->their_slots,
        .offset = index * TOW_MULTI_HOST_SLOT_BYTES,
        .tag = tag_of(TAG_LETTER, 0, 0),
        .check = peer->letters->options.check,
        .done = written,
    };
    if (!start_write(peer, &envelope->write_)) return false;
    stream->free_slots &= ~(UINT32_C(1) << slot);
    peer->letters->stats.sent_count++;
    return true;
}

static void flush_stream(tow_letters_peer_t *peer, out_stream_t *stream)
{
    while (stream->free_slots != 0 && !tow_list_is_empty(&stream->waiting)) {
        tow_envelope_t *envelope =
            TOW_CONTAINER_OF(stream->waiting.next, tow_envelope_t, list);
        if (!write_letter(peer, stream, envelope)) return;
        tow_list_remove(&envelope->list);
        tow_list_append(&peer->flying, &envelope->list);
    }
}

static void flush(tow_letters_peer_t *peer)
{
    if (!peer_is_up(peer)) return;
    const size_t count = stream_count(peer->letters->options.device_count);
    for (size_t i = 0; i < count && peer_is_up(peer); i++)
        flush_stream(peer, &peer->outs[i]);
}

void peer_send(tow_letters_peer_t *peer, tow_envelope_t *envelope)
{
    TOW_ASSERT(peer->is_awake);
    out_stream_t *stream = stream_of(peer, envelope);
    tow_list_append(&stream->waiting, &envelope->list);
    if (peer_is_up(peer)) flush_stream(peer, stream);
}

bool peer_has_mail(const tow_letters_peer_t *peer)
{
    if (!peer->is_awake || peer->is_failed) return false;
    if (!tow_list_is_empty(&peer->flying)) return true;
    const size_t count = stream_count(peer->letters->options.device_count);
    for (size_t i = 0; i < count; i++)
        if (!tow_list_is_empty(&peer->outs[i].waiting)) return true;
    return false;
}

static void notice_returned(tow_envelope_t *envelope)
{
    tow_free(envelope);
}

void peer_tell_abort(tow_letters_peer_t *peer, const abort_note_t *note)
{
    if (!peer->is_awake || peer->is_failed) return;
    const size_t size = strlen(note->reason) + 1;
    tow_envelope_t *envelope =
        tow_aligned_alloc(alignof(tow_envelope_t), sizeof(*envelope) + 256);
    if (envelope == NULL) return; /* The peer will time out. */
    *envelope = (tow_envelope_t){
        .process = peer->process_id,
        .returned = notice_returned,
        .head = {.box = {.run_id = note->run_id, .op_id = note->code},
                 .size = (uint32_t)size,
                 .kind = LETTER_ABORT}};
    tow_list_init(&envelope->list);
    memcpy(envelope->bytes, note->reason, size);
    peer->letters->stats.envelope_count++;
    peer_send(peer, envelope);
}

static void probed(tow_write_t *write, tow_status_t take_status)
{
    tow_letters_peer_t *peer =
        TOW_CONTAINER_OF(write, tow_letters_peer_t, probe);
    peer->is_probing = false;
    (void)end_write(peer, take_status);
}

/* Its completion shows that the peer is alive. */
void peer_probe(tow_letters_peer_t *peer)
{
    if (peer->is_probing || !peer_is_up(peer)) return;
    peer->probe = (tow_write_t){
        .bytes = peer->scratch,
        .size = sizeof(peer->scratch),
        .key = peer->their_slots,
        .offset = scratch_offset(peer->letters->options.device_count),
        .tag = tag_of(TAG_PROBE, 0, 0),
        .done = probed,
    };
    peer->is_probing = start_write(peer, &peer->probe);
}

/* -- Opening and closing --------------------------------------------------- */

static void lane_down(void *context, tow_lane_t *lane, tow_status_t cause)
{
    (void)lane;
    peer_break(context, tow_status_retain(cause));
}

static void lane_writable(void *context, tow_lane_t *lane)
{
    (void)lane;
    go_on(context);
}

static tow_status_t open_lane(tow_letters_peer_t *peer)
{
    char name[32];
    snprintf(name, sizeof(name), "process %" PRIu32, peer->process_id);
    return tow_env_lane_open(
        peer->letters->env,
        &(tow_lane_options_t){.address = peer->address,
                              .address_size = peer->address_size,
                              .peer_name = name,
                              .down = lane_down,
                              .writable = lane_writable,
                              .context = peer},
        &peer->lane);
}

static tow_status_t open_slots(tow_letters_peer_t *peer)
{
    const size_t size =
        scratch_offset(peer->device_count) + sizeof(peer->scratch);
    /* Not cleared: pages are allocated as letters arrive. */
    peer->bytes = tow_aligned_alloc(TOW_CACHE_LINE_BYTES,
                                    (size + TOW_CACHE_LINE_BYTES - 1) &
                                        ~(size_t)(TOW_CACHE_LINE_BYTES - 1));
    if (peer->bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return tow_env_region_open(peer->letters->env,
                               &(tow_region_options_t){.bytes = peer->bytes,
                                                       .size = size,
                                                       .arrived = arrived,
                                                       .context = peer},
                               &peer->region);
}

static tow_status_t make_streams(tow_letters_peer_t *peer)
{
    const size_t ins = stream_count(peer->device_count);
    const size_t outs = stream_count(peer->letters->options.device_count);
    peer->slots = tow_calloc(slot_total(peer), sizeof(*peer->slots));
    peer->ins = tow_calloc(ins, sizeof(*peer->ins));
    peer->outs = tow_calloc(outs, sizeof(*peer->outs));
    for (size_t i = 0; peer->outs != NULL && i < outs; i++) {
        peer->outs[i].free_slots = SLOTS_ALL;
        tow_list_init(&peer->outs[i].waiting);
    }
    if (peer->slots == NULL || peer->ins == NULL || peer->outs == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < ins; i++)
        peer->ins[i].peer = peer;
    return TOW_OK;
}

static void lay_out_slots(tow_letters_peer_t *peer)
{
    for (size_t i = 0; i < slot_total(peer); i++) {
        uint8_t *at = peer->bytes + i * TOW_MULTI_HOST_SLOT_BYTES;
        peer->slots[i] = (tow_letter_t){.head = (const tow_letter_head_t *)at,
                                        .bytes = at + sizeof(tow_letter_head_t),
                                        .peer = peer,
                                        .slot = (uint32_t)i};
        tow_list_init(&peer->slots[i].list);
    }
}

static tow_status_t open_all(tow_letters_peer_t *peer)
{
    TOW_RETURN_IF_ERROR(make_streams(peer));
    peer->is_awake = true; /* Envelopes may be queued. */
    TOW_RETURN_IF_ERROR(open_slots(peer));
    lay_out_slots(peer);
    return open_lane(peer);
}

void peer_wake(tow_letters_peer_t *peer)
{
    tow_letters_t *letters = peer->letters;
    if (peer->is_awake || peer->is_here || peer->is_failed ||
        letters->is_closing)
        return;
    tow_status_t status = open_all(peer);
    if (status != TOW_OK) {
        peer_break(peer, tow_status_annotate(status, "opening a lane to it"));
        return;
    }
    peer->session = tow_random_next(tow_env_random(letters->env)) | 1;
    peer->hello_delay_ns = TOW_MULTI_HOST_HELLO_MIN_NS;
    greet(peer);
    tow_env_timer_start(letters->env, &peer->hello_timer,
                        tow_env_now_ns(letters->env) + peer->hello_delay_ns);
}

tow_status_t peer_create(tow_letters_t *letters,
                         const tow_multi_host_peer_t *about,
                         tow_letters_peer_t **out_peer)
{
    tow_letters_peer_t *peer = tow_calloc(1, sizeof(*peer));
    void *address = tow_malloc(about->lane_address_size + 1);
    if (peer == NULL || address == NULL) {
        tow_free(peer);
        tow_free(address);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    if (about->lane_address_size > 0)
        memcpy(address, about->lane_address, about->lane_address_size);
    *peer = (tow_letters_peer_t){
        .letters = letters,
        .process_id = about->process_id,
        .device_count = about->device_count,
        .is_here = about->host_id == letters->options.host_id,
        .door = about->door,
        .address = address,
        .address_size = about->lane_address_size,
        .heard_ns = tow_env_now_ns(letters->env),
        .hello_timer = {.fire = greet_again},
    };
    tow_list_init(&peer->list);
    tow_list_init(&peer->flying);
    *out_peer = peer;
    return TOW_OK;
}

static void lane_closed(void *context)
{
    tow_letters_peer_t *peer = context;
    peer->lane = NULL;
    letters_peer_gone(peer->letters);
}

static void region_closed(void *context)
{
    tow_letters_peer_t *peer = context;
    peer->region = NULL;
    letters_peer_gone(peer->letters);
}

void peer_retire(tow_letters_peer_t *peer)
{
    tow_letters_t *letters = peer->letters;
    TOW_ASSERT(!peer->is_retired);
    peer->is_retired = true;
    tow_env_timer_stop(letters->env, &peer->hello_timer);
    strand_envelopes(peer);
    tow_list_append(&letters->retired, &peer->list);
    if (peer->lane != NULL)
        tow_lane_close(peer->lane, TOW_LANE_CLOSE_FORCE,
                       (tow_closed_t){lane_closed, peer});
    if (peer->region != NULL)
        tow_region_close(peer->region, (tow_closed_t){region_closed, peer});
    letters_peer_gone(letters);
}

static void return_all(tow_letters_t *letters, tow_list_t *list)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(list)) != NULL)
        letters_return(letters, TOW_CONTAINER_OF(item, tow_envelope_t, list));
}

void peer_free(tow_letters_peer_t *peer)
{
    tow_letters_t *letters = peer->letters;
    const size_t count = stream_count(letters->options.device_count);
    for (size_t i = 0; peer->outs != NULL && i < count; i++)
        return_all(letters, &peer->outs[i].waiting);
    return_all(letters, &peer->flying);
    tow_status_ignore(peer->cause, "it is gone");
    tow_free(peer->slots);
    tow_free(peer->ins);
    tow_free(peer->outs);
    tow_free(peer->bytes);
    tow_free(peer->address);
    tow_free(peer);
}
