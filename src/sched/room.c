/* Room on devices: whether a ticket can be granted, and what its pieces take.
 *
 * Memory is taken for the whole run with its first piece. Room in the queues of
 * devices is taken piece by piece, in estimated device time. */
#include "base/assert.h"
#include "sched/sched_impl.h"
#include "sched/tuning.h"

/* Sums of as many as gang_count_max of these do not overflow. */
#define COST_NS_MAX (UINT64_C(1) << 50)

/* What a piece takes on one device. */
typedef struct share {
    uint64_t ns; /* 0: no steps */
    uint64_t bytes;
} share_t;

static uint64_t cost_ns(const tow_sched_t *sched, const tow_run_piece_t *piece,
                        uint32_t step_count)
{
    uint64_t ns = 0;
    if (step_count == 0) return 0;
    if (piece->step_ns == 0) return sched->options.run_ahead_ns;
    if (__builtin_mul_overflow(piece->step_ns, step_count, &ns) ||
        ns > COST_NS_MAX)
        return COST_NS_MAX;
    return ns;
}

/* Parts without steps may be more than the piece knows of (update_parts). */
static uint32_t steps_of(const tow_ticket_t *ticket,
                         const tow_run_piece_t *piece, size_t part)
{
    const uint32_t step_count = ticket->parts[part].step_count;
    return piece->step_counts == NULL || step_count == 0
               ? step_count
               : piece->step_counts[part];
}

static share_t share_of(const tow_sched_t *sched, const tow_ticket_t *ticket,
                        size_t part)
{
    return (share_t){
        cost_ns(sched, &ticket->next, steps_of(ticket, &ticket->next, part)),
        ticket->parts[part].bytes};
}

/* -- Verdicts -------------------------------------------------------------- */

static uint64_t scan_of(const tow_sched_t *sched, const tow_account_t *account)
{
    return sched->islands[account->island].scan;
}

/* All its devices are marked: one look instead of many. A placement of several
 * islands never has a claim, because these may be scanned separately. */
static bool is_claimed(const tow_sched_t *sched,
                       const tow_placement_t *placement)
{
    return placement->claim_ == scan_of(sched, placement->accounts[0]);
}

static bool has_room(const tow_sched_t *sched, const tow_account_t *account,
                     uint64_t ns)
{
    const tow_sched_options_t *options = &sched->options;
    return ns == 0 || account->gang_count < options->gang_count_min ||
           (account->gang_count < options->gang_count_max &&
            account->queued_ns + ns <= options->run_ahead_ns);
}

static verdict_t judge(const tow_sched_t *sched, const tow_account_t *account,
                       uint64_t scan, share_t share)
{
    if (account->claim_ == scan || !has_room(sched, account, share.ns))
        return WAITS_FOR_ROOM;
    if (!tow_account_fits(account, share.bytes)) return WAITS_FOR_MEMORY;
    return CAN_BE_GRANTED;
}

/* A piece that has nothing to do on a placement does not wait for it. */
static bool is_concerned(const tow_ticket_t *ticket, share_t share)
{
    return ticket->state != TOW_TICKET_PARTLY || share.ns > 0;
}

static bool is_on_one_island(const tow_placement_t *placement)
{
    return (placement->islands & (placement->islands - 1)) == 0;
}

/* No other part has a device of its placement. */
static verdict_t judge_part(const tow_sched_t *sched,
                            const tow_ticket_t *ticket, size_t part)
{
    const tow_placement_t *placement = ticket->parts[part].placement;
    const share_t share = share_of(sched, ticket, part);
    const bool spans = !is_on_one_island(placement);
    uint64_t scan = scan_of(sched, placement->accounts[0]);
    verdict_t verdict = CAN_BE_GRANTED;
    if (!is_concerned(ticket, share)) return CAN_BE_GRANTED;
    if (placement->claim_ == scan) return WAITS_FOR_ROOM;
    for (size_t i = 0; i < placement->device_count; i++) {
        const tow_account_t *account = placement->accounts[i];
        if (TOW_UNLIKELY(spans)) scan = scan_of(sched, account);
        const verdict_t one = judge(sched, account, scan, share);
        if (one == WAITS_FOR_ROOM) return one;
        if (one != CAN_BE_GRANTED) verdict = one;
    }
    return verdict;
}

/* Parts on different islands have no device in common. */
static bool are_apart(const tow_ticket_t *ticket)
{
    uint64_t seen = 0;
    for (size_t p = 0; p < ticket->part_count; p++) {
        const uint64_t islands = ticket->parts[p].placement->islands;
        if ((seen & islands) != 0) return false;
        seen |= islands;
    }
    return true;
}

static verdict_t judge_apart(const tow_sched_t *sched,
                             const tow_ticket_t *ticket)
{
    verdict_t verdict = CAN_BE_GRANTED;
    for (size_t p = 0; p < ticket->part_count; p++) {
        const verdict_t one = judge_part(sched, ticket, p);
        if (one == WAITS_FOR_ROOM) return one;
        if (one != CAN_BE_GRANTED) verdict = one;
    }
    return verdict;
}

/* Parts may have devices in common: their shares add up there. */
static share_t add_share(tow_account_t *account, share_t share)
{
    account->scratch_sum_ += share.ns;
    if (__builtin_add_overflow(account->scratch_bytes_, share.bytes,
                               &account->scratch_bytes_))
        account->scratch_bytes_ = UINT64_MAX;
    return (share_t){account->scratch_sum_, account->scratch_bytes_};
}

static void clear_shares(const tow_ticket_t *ticket)
{
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++) {
            placement->accounts[i]->scratch_sum_ = 0;
            placement->accounts[i]->scratch_bytes_ = 0;
        }
    }
}

static verdict_t judge_parts(const tow_sched_t *sched,
                             const tow_ticket_t *ticket)
{
    verdict_t verdict = CAN_BE_GRANTED;
    for (size_t p = 0; p < ticket->part_count && verdict != WAITS_FOR_ROOM;
         p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        const share_t share = share_of(sched, ticket, p);
        if (!is_concerned(ticket, share)) continue;
        for (size_t i = 0; i < placement->device_count; i++) {
            tow_account_t *account = placement->accounts[i];
            verdict_t one = judge(sched, account, scan_of(sched, account),
                                  add_share(account, share));
            if (verdict != WAITS_FOR_ROOM && one != CAN_BE_GRANTED)
                verdict = one;
        }
    }
    clear_shares(ticket);
    return verdict;
}

static const tow_placement_t *lost_placement(const tow_ticket_t *ticket)
{
    for (size_t p = 0; p < ticket->part_count; p++)
        if (ticket->parts[p].placement->disconnected)
            return ticket->parts[p].placement;
    return NULL;
}

static verdict_t judge_all(const tow_sched_t *sched, const tow_ticket_t *ticket)
{
    if (TOW_LIKELY(ticket->part_count == 1))
        return judge_part(sched, ticket, 0);
    return are_apart(ticket) ? judge_apart(sched, ticket)
                             : judge_parts(sched, ticket);
}

/* What holds up a new ticket, beside resources. */
static verdict_t examine_new(const tow_sched_t *sched, tow_ticket_t *ticket)
{
    const tow_sched_options_t *options = &sched->options;
    if (options->prepare != NULL) options->prepare(options->context, ticket);
    if (TOW_UNLIKELY((sched->closed & ticket->islands_) != 0))
        return WAITS_FOR_ROOM;
    if (TOW_UNLIKELY(sched->stats.partly_count > 0) &&
        options->is_held != NULL && options->is_held(options->context, ticket))
        return WAITS_FOR_OTHERS;
    if (ticket->next.step_counts != NULL && !ticket->next.is_last &&
        sched->stats.partly_count >= TOW_SCHED_PARTLY_MAX)
        return WAITS_FOR_OTHERS;
    if (TOW_UNLIKELY(sched->is_updating_parts) &&
        !options->update_parts(options->context, ticket))
        return WAITS_FOR_OTHERS;
    return CAN_BE_GRANTED;
}

verdict_t tow_sched_examine(const tow_sched_t *sched, tow_ticket_t *ticket)
{
    /* It has its memory, also where a device has disconnected since. */
    if (TOW_UNLIKELY(ticket->state == TOW_TICKET_PARTLY))
        return judge_all(sched, ticket) == WAITS_FOR_ROOM ? WAITS_FOR_ROOM
                                                          : CAN_BE_GRANTED;
    if (TOW_UNLIKELY(lost_placement(ticket) != NULL)) return CANNOT_RUN;
    const verdict_t verdict = examine_new(sched, ticket);
    return TOW_LIKELY(verdict == CAN_BE_GRANTED) ? judge_all(sched, ticket)
                                                 : verdict;
}

/* -- Taking and giving back ------------------------------------------------ */

/* Of one part: pieces that take `ns`, or have no steps there, and the memory of
 * the run. One loop: with many devices it costs as much as all the rest. */
static void take_part(tow_placement_t *placement, uint64_t bytes, uint64_t ns)
{
    placement->reserved_bytes += bytes;
    for (size_t i = 0; i < placement->device_count; i++) {
        tow_account_t *account = placement->accounts[i];
        account->gang_count += ns > 0;
        account->queued_ns += ns;
        tow_account_reserve(account, bytes);
    }
}

static void give_back_part(tow_placement_t *placement, uint64_t bytes,
                           uint64_t ns)
{
    TOW_ASSERT(placement->reserved_bytes >= bytes);
    placement->reserved_bytes -= bytes;
    for (size_t i = 0; i < placement->device_count; i++) {
        tow_account_t *account = placement->accounts[i];
        TOW_ASSERT(account->gang_count >= (ns > 0) && account->queued_ns >= ns);
        account->gang_count -= ns > 0;
        account->queued_ns -= ns;
        tow_account_unreserve(account, bytes);
    }
}

void tow_sched_take_piece(const tow_sched_t *sched, tow_ticket_t *ticket,
                          bool is_first)
{
    TOW_ASSERT(ticket->piece_count_ < TOW_SCHED_PIECES_MAX);
    const tow_run_piece_t *piece = &ticket->next;
    ticket->pieces_[ticket->piece_count_++] = *piece;
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_ticket_part_t *part = &ticket->parts[p];
        const uint64_t bytes = is_first ? part->bytes : 0;
        const uint64_t ns = cost_ns(sched, piece, steps_of(ticket, piece, p));
        if (ns > 0 || is_first) take_part(part->placement, bytes, ns);
    }
}

void tow_sched_give_back_piece(const tow_sched_t *sched, tow_ticket_t *ticket,
                               bool is_last)
{
    TOW_ASSERT(ticket->piece_count_ > 0);
    const tow_run_piece_t piece = ticket->pieces_[0];
    ticket->piece_count_--;
    for (size_t i = 0; i < ticket->piece_count_; i++)
        ticket->pieces_[i] = ticket->pieces_[i + 1];
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_ticket_part_t *part = &ticket->parts[p];
        const uint64_t bytes = is_last ? part->bytes : 0;
        const uint64_t ns = cost_ns(sched, &piece, steps_of(ticket, &piece, p));
        if (ns > 0 || is_last) give_back_part(part->placement, bytes, ns);
    }
}

void tow_sched_give_back(const tow_sched_t *sched, tow_ticket_t *ticket)
{
    while (ticket->piece_count_ > 1)
        tow_sched_give_back_piece(sched, ticket, false);
    if (TOW_LIKELY(ticket->piece_count_ == 1)) {
        tow_sched_give_back_piece(sched, ticket, true);
        return;
    }
    for (size_t p = 0; p < ticket->part_count; p++)
        tow_placement_unreserve(ticket->parts[p].placement,
                                ticket->parts[p].bytes);
}

void tow_sched_mark_devices(tow_sched_t *sched, const tow_ticket_t *ticket)
{
    for (size_t p = 0; p < ticket->part_count; p++) {
        tow_placement_t *placement = ticket->parts[p].placement;
        if (!is_concerned(ticket, share_of(sched, ticket, p))) continue;
        if (is_claimed(sched, placement)) continue;
        if (is_on_one_island(placement))
            placement->claim_ = scan_of(sched, placement->accounts[0]);
        for (size_t i = 0; i < placement->device_count; i++) {
            tow_account_t *account = placement->accounts[i];
            account->claim_ = scan_of(sched, account);
        }
    }
}

/* -- Refusals -------------------------------------------------------------- */

/* On the first device that is short, with the sum of all parts there. */
static tow_status_t describe_shortage(const tow_ticket_t *ticket)
{
    tow_status_t status = TOW_OK;
    for (size_t p = 0; p < ticket->part_count && status == TOW_OK; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++) {
            tow_account_t *account = placement->accounts[i];
            const share_t share =
                add_share(account, (share_t){.bytes = ticket->parts[p].bytes});
            if (tow_account_fits(account, share.bytes)) continue;
            status = tow_placement_refusal_at(placement, i, share.bytes);
            break;
        }
    }
    clear_shares(ticket);
    TOW_ASSERT(status != TOW_OK);
    return status;
}

tow_status_t tow_sched_describe_refusal(const tow_ticket_t *ticket)
{
    const tow_placement_t *lost = lost_placement(ticket);
    if (lost != NULL) return tow_status_retain(lost->error);
    return tow_status_annotate(describe_shortage(ticket),
                               "nothing is under way that could make room");
}
