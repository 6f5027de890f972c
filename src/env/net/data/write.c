/* Bulk writes on lanes that we opened.
 *
 * A large write to a target of this host that may read our memory is one
 * message, a pull: the target reads the bytes itself (cross_read.h). A large
 * write to another host is striped over the subflows of the trunk, if there are
 * any: other threads then send its fragments. All others are split into
 * fragments here.
 *
 * The writes of a lane send fragments in turn, so that a small one does not
 * wait for a large one. A write is done when the target has answered and UCX,
 * or the subflows, have released all its bytes; completion of sends alone says
 * nothing about arrival. */
#include "base/block.h"
#include "base/hash.h"
#include "env/net/data/data_impl.h"

/* The state in tow_write_t.private_. */
typedef enum write_phase {
    WRITE_READY,   /* in lane->ready */
    WRITE_WAITING, /* in lane->waiting or lane->whole_waiting */
    WRITE_SENT,    /* in lane->sent */
    WRITE_SHARED,  /* in data->shared, then in lane->shared */
    WRITE_ENDED,   /* in lane->ending or data->finished */
} write_phase_t;

typedef struct write_state {
    tow_list_t list;
    tow_data_lane_t *lane; /* lent: waits for this write */
    /* The guard of cross_read.h: targets that pull read it in place. */
    uint64_t number;
    uint64_t sent_bytes;
    tow_status_t status;     /* owned: the result */
    uint32_t crc;            /* of the bytes sent */
    uint16_t fragment_count; /* inside UCX, or one inside subflows */
    uint8_t attempt;
    uint8_t phase;
    bool crc_is_ahead; /* already includes the next fragment */
    bool is_pulled;    /* sent as a pull, and counted in whole_count */
    bool is_striped;   /* sent over subflows, and counted in whole_count */
    bool is_refused;   /* the target cannot pull it: send fragments */
    bool is_offered;   /* sent with permission to share the bytes */
} write_state_t;

_Static_assert(sizeof(write_state_t) <= sizeof(((tow_write_t *)0)->private_),
               "the state lies in the write");
_Static_assert(TOW_NET_LANE_WINDOW <= UINT16_MAX, "fits fragment_count");

static write_state_t *state_of(tow_write_t *write)
{
    return (write_state_t *)write->private_;
}

static tow_write_t *write_of(tow_list_t *item)
{
    write_state_t *state = TOW_CONTAINER_OF(item, write_state_t, list);
    return TOW_CONTAINER_OF(state, tow_write_t, private_);
}

/* More than one fragment: takes turns with others. */
static bool is_large(const tow_data_lane_t *lane, const tow_write_t *write)
{
    const write_state_t *state = (const write_state_t *)write->private_;
    return !state->is_pulled && !state->is_striped &&
           write->size > lane->fragment_bytes;
}

/* Not with a checksum, which would have to be complete before the pull is
 * sent. */
static bool wants_pull(const tow_data_lane_t *lane, tow_write_t *write)
{
    return lane->cross_read != TOW_DATA_CROSS_READ_NONE &&
           write->size >= TOW_NET_PULL_BYTES_MIN &&
           write->check == TOW_WRITE_UNCHECKED && !state_of(write)->is_refused;
}

/* Not before the target has answered HELLO, which the bytes could overtake on
 * another connection. */
static bool wants_stripes(const tow_data_lane_t *lane, const tow_write_t *write)
{
    tow_data_trunk_t *trunk = lane->port->trunk;
    return trunk != NULL && write->size >= TOW_NET_STRIPED_BYTES_MIN &&
           !tow_timer_is_armed(&lane->opening) &&
           tow_data_trunk_may_stripe(trunk);
}

/* -- Queues --------------------------------------------------------------- */

void tow_data_lane_mark_busy(tow_data_lane_t *lane)
{
    if (!tow_list_is_empty(&lane->busy) || lane->is_cut ||
        tow_list_is_empty(&lane->ready) ||
        lane->fragment_count >= TOW_NET_LANE_WINDOW)
        return;
    /* UCX gets memory of users only when it can be forced to return it. */
    if (!lane->port->sends_at_once && !lane->port->is_settled) return;
    tow_list_append(&lane->data->busy, &lane->busy);
    lane->data->is_stuck = false;
}

static bool may_send_whole(const tow_data_lane_t *lane)
{
    return lane->port->route == TOW_DATA_TRUNK
               ? lane->whole_count < TOW_NET_LANE_STRIPED_COUNT_MAX
               : lane->cross_read == TOW_DATA_CROSS_READ_GRANTED &&
                     lane->whole_count < TOW_NET_LANE_PULL_COUNT_MAX;
}

/* A write that is sent as a pull, or striped. */
static void enqueue_whole(tow_data_lane_t *lane, tow_write_t *write)
{
    write_state_t *state = state_of(write);
    if (!may_send_whole(lane)) {
        state->phase = WRITE_WAITING;
        tow_list_append(&lane->whole_waiting, &state->list);
        return;
    }
    lane->whole_count++;
    state->is_striped = lane->port->route == TOW_DATA_TRUNK;
    state->is_pulled = !state->is_striped;
    state->phase = WRITE_READY;
    tow_list_append(&lane->ready, &state->list);
    tow_data_lane_mark_busy(lane);
}

static void enqueue(tow_data_lane_t *lane, tow_write_t *write)
{
    write_state_t *state = state_of(write);
    if (wants_pull(lane, write) || wants_stripes(lane, write)) {
        enqueue_whole(lane, write);
        return;
    }
    if (!is_large(lane, write) ||
        lane->large_count < TOW_NET_LANE_LARGE_COUNT_MAX) {
        lane->large_count += is_large(lane, write);
        state->phase = WRITE_READY;
        tow_list_append(&lane->ready, &state->list);
        tow_data_lane_mark_busy(lane);
    } else {
        state->phase = WRITE_WAITING;
        tow_list_append(&lane->waiting, &state->list);
    }
}

/* Removes the write from its queue; another may take its place. */
static void dequeue(tow_data_lane_t *lane, tow_write_t *write)
{
    write_state_t *state = state_of(write);
    tow_list_remove(&state->list);
    if (state->phase != WRITE_READY || !is_large(lane, write)) return;
    lane->large_count--;
    tow_list_t *next = tow_list_pop_front(&lane->waiting);
    if (next != NULL) enqueue(lane, write_of(next));
}

/* A pull or a striped write has ended, or was never sent: another may take its
 * place. */
static void leave_whole(tow_data_lane_t *lane, tow_write_t *write)
{
    write_state_t *state = state_of(write);
    if (!state->is_pulled && !state->is_striped) return;
    state->is_pulled = state->is_striped = false;
    lane->whole_count--;
    if (lane->is_cut) return;
    tow_list_t *next = tow_list_pop_front(&lane->whole_waiting);
    if (next != NULL) enqueue(lane, write_of(next));
}

/* From here on targets reject what they pull: only then may the bytes
 * change. */
static void withdraw_number(tow_data_lane_t *lane, write_state_t *state)
{
    tow_map_remove(&lane->writes, state->number);
    __atomic_store_n(&state->number, 0, __ATOMIC_SEQ_CST);
    tow_data_cross_read_fence();
}

static void end_write(tow_data_lane_t *lane, tow_write_t *write,
                      tow_status_t take_status)
{
    write_state_t *state = state_of(write);
    TOW_ASSERT(state->phase != WRITE_ENDED);
    lane->shared_count -= state->phase == WRITE_SHARED;
    dequeue(lane, write);
    leave_whole(lane, write);
    withdraw_number(lane, state);
    state->phase = WRITE_ENDED;
    state->status = take_status;
    tow_list_append(state->fragment_count == 0 ? &lane->data->finished
                                               : &lane->ending,
                    &state->list);
}

/* The target identifies attempts by their number, so each has its own. */
static bool number_write(tow_data_lane_t *lane, tow_write_t *write)
{
    write_state_t *state = state_of(write);
    state->number = lane->next_write;
    if (!tow_map_put(&lane->writes, state->number, write)) return false;
    lane->next_write++;
    return true;
}

/* Called for the first write that does not fit into a message. */
static void make_ring(tow_data_lane_t *lane)
{
    tow_status_t status = tow_data_ring_create(&lane->ring);
    lane->fragment_bytes = TOW_NET_FRAGMENT_SHM_BYTES;
    if (status == TOW_OK) return;
    tow_log(
        &lane->data->net->env.log, TOW_LOG_WARN,
        "cannot create a shared-memory ring: writes go through ucx, slower, and "
        "the death of this process may block the peer",
        TOW_F_STR("peer", lane->peer_name), TOW_F_STATUS("cause", status));
    tow_status_release(status);
    lane->fragment_bytes = TOW_NET_FRAGMENT_DIRECT_BYTES;
}

tow_send_result_t tow_data_lane_write(tow_lane_t *base, tow_write_t *write)
{
    tow_data_lane_t *lane = TOW_CONTAINER_OF(base, tow_data_lane_t, lane);
    if (!tow_data_lane_takes_sends(lane)) return TOW_SEND_DOWN;
    if (lane->write_count >= TOW_NET_LANE_WRITE_COUNT_MAX)
        return tow_data_lane_refuse(lane);
    if (lane->fragment_bytes == 0) make_ring(lane);
    write_state_t *state = state_of(write);
    *state = (write_state_t){.lane = lane};
    tow_list_init(&state->list);
    write->is_stranded = false;
    if (!number_write(lane, write)) return tow_data_lane_refuse(lane);
    lane->write_count++;
    tow_data_lane_watch(lane);
    enqueue(lane, write);
    tow_data_lane_check(lane);
    return TOW_SEND_OK;
}

static void report_shared(tow_data_t *data)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&data->shared)) != NULL) {
        tow_write_t *write = write_of(item);
        tow_list_append(&state_of(write)->lane->shared, item);
        tow_data_begin_turn(data);
        write->shared(write);
    }
}

void tow_data_finish_writes(tow_data_t *data)
{
    tow_list_t *item;
    report_shared(data);
    while ((item = tow_list_pop_front(&data->finished)) != NULL) {
        tow_write_t *write = write_of(item);
        write_state_t *state = state_of(write);
        TOW_ASSERT(state->lane->write_count > 0);
        state->lane->write_count--;
        tow_data_lane_check(state->lane);
        tow_data_lane_note_progress(state->lane);
        tow_data_begin_turn(data);
        write->done(write, state->status); /* May free or reuse it. */
    }
}

/* -- Fragments and pulls -------------------------------------------------- */

/* The header of a fragment, without its checksum. */
static tow_data_fragment_t describe(const tow_data_lane_t *lane,
                                    tow_write_t *write)
{
    const write_state_t *state = state_of(write);
    return (tow_data_fragment_t){
        .stream = lane->stream,
        .write = state->number,
        .region = write->key.id,
        .secret = write->key.secret,
        .place = write->offset,
        .total = write->size,
        .at = state->sent_bytes,
        .tag = write->tag,
        .flags = write->check == TOW_WRITE_CRC32C ? TOW_DATA_CHECKED : 0,
    };
}

static tow_data_fragment_t next_fragment(tow_data_lane_t *lane,
                                         tow_write_t *write, size_t size)
{
    write_state_t *state = state_of(write);
    tow_data_fragment_t fragment = describe(lane, write);
    if (write->check == TOW_WRITE_CRC32C) {
        if (!state->crc_is_ahead)
            state->crc = tow_crc32c(
                state->crc, (const uint8_t *)write->bytes + state->sent_bytes,
                size);
        state->crc_is_ahead = true; /* It may not be sent at the first try. */
    }
    if (state->sent_bytes + size == write->size) {
        fragment.flags |= TOW_DATA_LAST;
        fragment.crc = state->crc;
    }
    return fragment;
}

static void note_fragment_sent(tow_write_t *write, size_t size)
{
    write_state_t *state = state_of(write);
    state->sent_bytes += size;
    state->crc_is_ahead = false;
}

/* Without a ring, UCX gets the user's bytes. */
static tow_data_sent_t queue_direct(tow_data_lane_t *lane, tow_write_t *write,
                                    tow_data_op_t *op, tow_data_bytes_t payload)
{
    op->write = write;
    tow_data_sent_t result =
        tow_data_port_send(lane->port, op, TOW_DATA_FRAGMENT,
                           sizeof(op->header.fragment), payload);
    if (result != TOW_DATA_QUEUED) return result;
    state_of(write)->fragment_count++;
    lane->fragment_count++;
    return TOW_DATA_SENT;
}

/* UCX gets a copy of the bytes, or of a reference to them. */
static tow_data_sent_t queue_copy(tow_data_lane_t *lane, tow_data_op_t *op,
                                  tow_data_bytes_t payload)
{
    memcpy(op->room, payload.bytes, payload.size);
    payload.bytes = op->room;
    tow_data_sent_t result =
        tow_data_port_send(lane->port, op, TOW_DATA_FRAGMENT,
                           sizeof(op->header.fragment), payload);
    return result == TOW_DATA_QUEUED ? TOW_DATA_SENT : result;
}

static tow_data_sent_t queue_fragment(tow_data_lane_t *lane, tow_write_t *write,
                                      tow_data_bytes_t payload)
{
    tow_data_op_t *op = tow_data_op_take(lane->port, 0);
    if (op == NULL) return TOW_DATA_FULL;
    op->header.fragment = next_fragment(lane, write, payload.size);
    if (payload.size <= TOW_NET_FRAGMENT_INLINE_BYTES)
        return queue_copy(lane, op, payload);
    if (lane->ring == NULL) return queue_direct(lane, write, op, payload);
    tow_data_ring_ref_t ref;
    if (!tow_data_ring_put(lane->ring, payload.bytes, payload.size, &ref)) {
        tow_data_op_give(op);
        return TOW_DATA_FULL;
    }
    op->header.fragment.flags |= TOW_DATA_IN_RING;
    return queue_copy(lane, op,
                      (tow_data_bytes_t){.bytes = &ref, .size = sizeof(ref)});
}

static tow_data_sent_t try_fragment(tow_data_lane_t *lane, tow_write_t *write,
                                    tow_data_bytes_t payload)
{
    const tow_data_fragment_t fragment =
        next_fragment(lane, write, payload.size);
    const tow_data_bytes_t header = {.bytes = &fragment,
                                     .size = sizeof(fragment)};
    return tow_data_port_try(lane->port, TOW_DATA_FRAGMENT, header, payload);
}

/* Bytes in a block can be mapped by the target, and shared. If sharing is
 * allowed but the bytes are not in a block, we ask for the next ones of this
 * size to be. */
static void describe_block(const tow_data_lane_t *lane,
                           const tow_write_t *write, tow_data_pull_t *pull)
{
    tow_block_place_t place;
    if (!tow_block_find(write->bytes, write->size, &place)) {
        if (write->shared != NULL) tow_block_prefer(write->size);
        return;
    }
    pull->block = place.number;
    pull->block_size = place.size;
    pull->block_offset = place.offset;
    pull->block_fd = (uint32_t)place.fd;
    if (write->shared != NULL &&
        lane->shared_count < TOW_NET_LANE_SHARE_COUNT_MAX)
        pull->flags |= TOW_DATA_MAY_SHARE;
}

static bool send_pull(tow_data_lane_t *lane, tow_write_t *write)
{
    write_state_t *state = state_of(write);
    tow_data_op_t *op = tow_data_op_take(lane->port, 0);
    if (op == NULL) return false;
    op->header.pull = (tow_data_pull_t){
        .stream = lane->stream,
        .write = state->number,
        .region = write->key.id,
        .secret = write->key.secret,
        .place = write->offset,
        .total = write->size,
        .tag = write->tag,
        .bytes = (uintptr_t)write->bytes,
        .guard_address = (uintptr_t)&state->number,
    };
    describe_block(lane, write, &op->header.pull);
    const bool is_offered = op->header.pull.flags & TOW_DATA_MAY_SHARE;
    if (tow_data_port_send(lane->port, op, TOW_DATA_PULL,
                           sizeof(op->header.pull),
                           (tow_data_bytes_t){0}) == TOW_DATA_FAILED)
        return false;
    state->sent_bytes = write->size;
    state->is_offered = is_offered;
    return true;
}

static bool send_striped(tow_data_lane_t *lane, tow_write_t *write)
{
    write_state_t *state = state_of(write);
    tow_data_op_t *op = tow_data_op_take(lane->port, 0);
    if (op == NULL) return false;
    op->write = write;
    op->header.fragment = describe(lane, write);
    const tow_data_bytes_t payload = {write->bytes, write->size};
    if (tow_data_port_stripe(lane->port, op, payload) != TOW_DATA_QUEUED) {
        tow_data_op_give(op);
        return false;
    }
    state->fragment_count++;
    lane->fragment_count++;
    state->sent_bytes = write->size;
    return true;
}

/* False when nothing could be sent. */
static bool send_fragment(tow_data_lane_t *lane, tow_write_t *write)
{
    if (state_of(write)->is_pulled) return send_pull(lane, write);
    if (state_of(write)->is_striped) return send_striped(lane, write);
    const uint64_t at = state_of(write)->sent_bytes;
    size_t size = write->size - at;
    if (size > lane->fragment_bytes) size = lane->fragment_bytes;
    const tow_data_bytes_t payload = {
        .bytes = (const uint8_t *)write->bytes + at, .size = size};
    tow_data_sent_t result = lane->port->sends_at_once
                                 ? try_fragment(lane, write, payload)
                                 : queue_fragment(lane, write, payload);
    if (result != TOW_DATA_SENT) return false;
    note_fragment_sent(write, size);
    return true;
}

/* Encrypting a fragment takes longer than copying one. */
static uint32_t fragment_cost(const tow_data_lane_t *lane)
{
    return lane->port->route == TOW_DATA_TRUNK ? TOW_NET_PUMP_TRUNK_COST : 1;
}

/* The cost of what was sent. */
static uint32_t pump_lane(tow_data_lane_t *lane)
{
    uint32_t cost = 0;
    while (cost < TOW_NET_PUMP_LANE_COUNT &&
           lane->fragment_count < TOW_NET_LANE_WINDOW &&
           !tow_list_is_empty(&lane->ready)) {
        tow_write_t *write = write_of(lane->ready.next);
        write_state_t *state = state_of(write);
        if (!send_fragment(lane, write)) break;
        cost += fragment_cost(lane);
        if (state->sent_bytes == write->size) {
            dequeue(lane, write);
            state->phase = WRITE_SENT;
            tow_list_append(&lane->sent, &state->list);
        } else { /* To the end of the queue: round robin. */
            tow_list_remove(&state->list);
            tow_list_append(&lane->ready, &state->list);
        }
    }
    return cost;
}

bool tow_data_pump(tow_data_t *data)
{
    uint32_t total = 0;
    tow_list_t stuck; /* Lanes that could not send: they are retried later. */
    tow_list_init(&stuck);
    while (total < TOW_NET_PUMP_TOTAL_COUNT &&
           !tow_list_is_empty(&data->busy)) {
        tow_data_lane_t *lane = TOW_CONTAINER_OF(
            tow_list_pop_front(&data->busy), tow_data_lane_t, busy);
        if (lane->port->failure != UCS_OK) continue;
        const uint32_t cost = pump_lane(lane);
        total += cost;
        if (cost > 0)
            tow_data_lane_mark_busy(lane);
        else if (lane->port->failure == UCS_OK)
            tow_list_append(&stuck, &lane->busy);
    }
    tow_list_t *item;
    while ((item = tow_list_pop_front(&stuck)) != NULL)
        tow_list_append(&data->busy, item);
    return total > 0;
}

void tow_data_write_sent(tow_data_op_t *op)
{
    write_state_t *state = state_of(op->write);
    state->lane->fragment_count--;
    state->fragment_count--;
    if (state->phase != WRITE_ENDED || state->fragment_count > 0) return;
    tow_list_remove(&state->list);
    tow_list_append(&op->port->data->finished, &state->list);
}

/* -- Answers -------------------------------------------------------------- */

static const char *explain(tow_code_t code)
{
    switch (code) {
    case TOW_NOT_FOUND: return "no such region";
    case TOW_PERMISSION_DENIED: return "wrong region key";
    case TOW_OUT_OF_RANGE: return "beyond the end of the region";
    case TOW_DATA_LOSS: return "checksum mismatch";
    default: return "no reason given";
    }
}

static void send_again(tow_data_lane_t *lane, tow_write_t *write)
{
    write_state_t *state = state_of(write);
    dequeue(lane, write);
    leave_whole(lane, write);
    withdraw_number(lane, state);
    state->attempt++;
    state->sent_bytes = 0;
    state->crc = 0;
    state->is_offered = false;
    state->phase = WRITE_WAITING;
    if (number_write(lane, write))
        enqueue(lane, write);
    else
        end_write(lane, write, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
}

void tow_data_lane_on_cross_read_reply(tow_data_lane_t *lane, bool is_granted)
{
    if (lane->cross_read != TOW_DATA_CROSS_READ_REQUESTED || lane->is_cut)
        return;
    lane->cross_read =
        is_granted ? TOW_DATA_CROSS_READ_GRANTED : TOW_DATA_CROSS_READ_NONE;
    tow_list_t waiting;
    tow_list_init(&waiting);
    tow_list_t *item;
    while ((item = tow_list_pop_front(&lane->whole_waiting)) != NULL)
        tow_list_append(&waiting, item);
    while ((item = tow_list_pop_front(&waiting)) != NULL)
        enqueue(lane, write_of(item));
}

void tow_data_write_on_answer(tow_data_lane_t *lane,
                              const tow_data_control_t *control)
{
    tow_write_t *write = tow_map_find(&lane->writes, control->write);
    if (write == NULL) return; /* It has ended: rejected, then answered. */
    write_state_t *state = state_of(write);
    if (control->code == TOW_CODE_OK) {
        if (state->phase == WRITE_SENT || state->phase == WRITE_SHARED) {
            end_write(lane, write, TOW_OK);
            return;
        }
        tow_data_log_bad_peer(lane->data, lane->stream,
                              "an answer to a write that was not sent");
        return;
    }
    if (state->is_pulled && control->code == TOW_FAILED_PRECONDITION) {
        state->is_refused = true;
        send_again(lane, write);
        return;
    }
    if (control->code == TOW_DATA_LOSS &&
        state->attempt + 1 < TOW_NET_WRITE_ATTEMPT_COUNT_MAX) {
        send_again(lane, write);
        return;
    }
    end_write(lane, write,
              TOW_ERROR((tow_code_t)control->code,
                        "%s refused a write of %zu bytes at %llu to region "
                        "%llu: %s",
                        lane->peer_name, write->size,
                        (unsigned long long)write->offset,
                        (unsigned long long)write->key.id,
                        explain((tow_code_t)control->code)));
}

void tow_data_write_on_shared(tow_data_lane_t *lane,
                              const tow_data_control_t *control)
{
    tow_write_t *write = tow_map_find(&lane->writes, control->write);
    if (write == NULL) return; /* As above. */
    write_state_t *state = state_of(write);
    if (state->phase != WRITE_SENT || !state->is_offered) {
        tow_data_log_bad_peer(lane->data, lane->stream,
                              "a SHARED for a write that may not be shared");
        return;
    }
    dequeue(lane, write);
    leave_whole(lane, write);
    state->phase = WRITE_SHARED;
    lane->shared_count++;
    tow_list_append(&lane->data->shared, &state->list);
}

/* -- Closing -------------------------------------------------------------- */

/* The target may be sharing any write that was sent with permission to. */
static void end_writes_in(tow_data_lane_t *lane, tow_list_t *queue,
                          tow_status_t cause)
{
    while (!tow_list_is_empty(queue)) {
        tow_write_t *write = write_of(queue->next);
        write->is_stranded = state_of(write)->is_offered;
        end_write(lane, write, tow_status_retain(cause));
    }
}

void tow_data_writes_end(tow_data_lane_t *lane, tow_status_t cause)
{
    /* First: none of them takes a place. */
    end_writes_in(lane, &lane->whole_waiting, cause);
    end_writes_in(lane, &lane->waiting, cause);
    end_writes_in(lane, &lane->ready, cause);
    end_writes_in(lane, &lane->sent, cause);
    report_shared(lane->data); /* So that each is in one of these queues. */
    end_writes_in(lane, &lane->shared, cause);
}
