/* A scheduling pass: grants all tickets that can be granted, in one order for
 * the whole cluster.
 *
 * Two devices that start gangs A and B in different orders wait for each other
 * inside their collectives for ever, so the order is decided once, here, and
 * never per device. A ticket that the policy chose and whose devices have no
 * space in their queues waits, and its devices are marked: every ticket that
 * was chosen later and needs one of them waits too. Otherwise a gang of many
 * devices would wait for ever behind small gangs that never leave all of its
 * queues short at once. When resources were freed, the pass first visits the
 * tickets that wait on that island, in the order in which they were chosen, and
 * only then asks the policy for more.
 *
 * Why every chosen ticket is granted or refused in the end. A ticket takes
 * nothing before it is granted, and then everything, on all its islands: a
 * waiting ticket holds nothing, and a granted one needs nothing more from the
 * scheduler. A granted ticket can run: of those granted and not finished, the
 * one with the lowest number has no other before it on any of its devices, on
 * any island, since each island is granted its gangs in the order of numbers.
 * So all granted tickets finish.
 *   - A ticket that waits for memory is the first on all its islands. It waits
 *     only for tickets that were granted there; when they have finished it is
 *     granted or refused.
 *   - Of the other waiting tickets, take the one that was chosen first. Only
 *     tickets chosen before make marks that hold it up, so there are none; a
 *     ticket that waits for memory on one of its islands is granted or refused
 *     after a while, and no other can take its devices meanwhile, because it
 *     has marked them. The work under way on its devices finishes. Then it is
 *     granted, refused, or waits for memory, see above.
 * Every ready ticket is chosen in the end if the policy is fair: of the
 * policy's choices on all islands, the oldest is served. */
#include "base/assert.h"
#include "sched/sched_impl.h"

typedef enum verdict {
    CAN_BE_GRANTED,
    /* Or for an island that lacks memory, or for an object that moves. */
    WAITS_FOR_RUN_AHEAD,
    WAITS_FOR_MEMORY,
    CANNOT_RUN, /* one of its placements has disconnected */
} verdict_t;

/* -- Verdicts -------------------------------------------------------------- */

/* The resources of a ticket on one device. */
typedef struct share {
    uint64_t steps;
    uint64_t bytes;
} share_t;

static uint64_t walk_of(const tow_sched_t *sched, const tow_account_t *account)
{
    return sched->islands[account->island].scan;
}

/* All its devices are marked: one look instead of many. A placement of several
 * islands never has a claim, because these may be scanned separately. */
static bool is_claimed(const tow_sched_t *sched,
                       const tow_placement_t *placement)
{
    return placement->claim_ == walk_of(sched, placement->accounts[0]);
}

/* A ticket with more steps than the limit may start on an empty queue; no other
 * may join a queue that such a ticket has filled. */
static bool has_run_ahead(const tow_sched_t *sched,
                          const tow_account_t *account, uint64_t steps)
{
    return account->step_count == 0 || steps == 0 ||
           account->step_count + steps <= sched->options.run_ahead_max;
}

static verdict_t judge(const tow_sched_t *sched, const tow_account_t *account,
                       share_t share)
{
    if (account->claim_ == walk_of(sched, account) ||
        !has_run_ahead(sched, account, share.steps))
        return WAITS_FOR_RUN_AHEAD;
    if (!tow_account_fits(account, share.bytes)) return WAITS_FOR_MEMORY;
    return CAN_BE_GRANTED;
}

static verdict_t judge_part(const tow_sched_t *sched,
                            const tow_ticket_part_t *part)
{
    const tow_placement_t *placement = part->placement;
    share_t share = {part->step_count, part->bytes};
    verdict_t verdict = CAN_BE_GRANTED;
    if (is_claimed(sched, placement)) return WAITS_FOR_RUN_AHEAD;
    for (size_t i = 0; i < placement->device_count; i++) {
        verdict_t one = judge(sched, placement->accounts[i], share);
        if (one == WAITS_FOR_RUN_AHEAD) return one;
        if (one != CAN_BE_GRANTED) verdict = one;
    }
    return verdict;
}

/* Parts may have devices in common: their shares add up there. */
static share_t add_share(tow_account_t *account, const tow_ticket_part_t *part)
{
    account->scratch_steps_ += part->step_count;
    if (__builtin_add_overflow(account->scratch_bytes_, part->bytes,
                               &account->scratch_bytes_))
        account->scratch_bytes_ = UINT64_MAX;
    return (share_t){account->scratch_steps_, account->scratch_bytes_};
}

static void clear_shares(const tow_ticket_t *ticket)
{
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++) {
            placement->accounts[i]->scratch_steps_ = 0;
            placement->accounts[i]->scratch_bytes_ = 0;
        }
    }
}

static verdict_t judge_parts(const tow_sched_t *sched,
                             const tow_ticket_t *ticket)
{
    verdict_t verdict = CAN_BE_GRANTED;
    for (size_t p = 0; p < ticket->part_count; p++) {
        const tow_ticket_part_t *part = &ticket->parts[p];
        for (size_t i = 0; i < part->placement->device_count; i++) {
            tow_account_t *account = part->placement->accounts[i];
            verdict_t one = judge(sched, account, add_share(account, part));
            if (verdict != WAITS_FOR_RUN_AHEAD && one != CAN_BE_GRANTED)
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

static verdict_t examine(const tow_sched_t *sched, tow_ticket_t *ticket)
{
    if (TOW_UNLIKELY(lost_placement(ticket) != NULL)) return CANNOT_RUN;
    if (TOW_UNLIKELY((sched->closed & ticket->islands_) != 0))
        return WAITS_FOR_RUN_AHEAD;
    if (TOW_UNLIKELY(sched->is_updating_parts) &&
        !sched->options.update_parts(sched->options.context, ticket))
        return WAITS_FOR_RUN_AHEAD;
    if (TOW_LIKELY(ticket->part_count == 1))
        return judge_part(sched, &ticket->parts[0]);
    return judge_parts(sched, ticket);
}

/* -- Granting and finishing ------------------------------------------------ */

static void take_part(const tow_ticket_part_t *part)
{
    tow_placement_t *placement = part->placement;
    tow_placement_reserve(placement, part->bytes);
    for (size_t i = 0; i < placement->device_count; i++) {
        uint32_t *steps = &placement->accounts[i]->step_count;
        bool overflows =
            __builtin_add_overflow(*steps, part->step_count, steps);
        TOW_ASSERT(!overflows);
    }
}

static void give_back_part(const tow_ticket_part_t *part)
{
    tow_placement_t *placement = part->placement;
    tow_placement_unreserve(placement, part->bytes);
    for (size_t i = 0; i < placement->device_count; i++) {
        TOW_ASSERT(placement->accounts[i]->step_count >= part->step_count);
        placement->accounts[i]->step_count -= part->step_count;
    }
}

/* On each of its islands. */
static void count_under_way(tow_sched_t *sched, const tow_ticket_t *ticket,
                            bool granted)
{
    for (island_set_t set = ticket->islands_; set != 0;) {
        tow_sched_island_stats_t *stats =
            &sched->islands[tow_sched_island_take(&set)].stats;
        stats->granted += granted;
        stats->under_way_count += granted ? 1 : (size_t)-1;
    }
    sched->stats.under_way_count += granted ? 1 : (size_t)-1;
}

static void grant(tow_sched_t *sched, tow_ticket_t *ticket)
{
    const tow_sched_policy_t *policy = sched->options.policy;
    const tow_sched_queue_t *queue = ticket->links_[0].queue;
    for (size_t p = 0; p < ticket->part_count; p++)
        take_part(&ticket->parts[p]);
    /* The client's next ticket is in the ready list before this call: the owner
     * may submit and withdraw. */
    ticket->place_ = TICKET_ASIDE;
    tow_sched_dequeue(sched, ticket);
    ticket->state = TOW_TICKET_GRANTED;
    ticket->number = ++sched->number_last;
    sched->stats.granted++;
    count_under_way(sched, ticket, true);
    if (policy->served != NULL) policy->served(policy->context, queue, ticket);
    sched->options.grant(sched->options.context, ticket);
}

void tow_sched_finish(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->state == TOW_TICKET_GRANTED);
    TOW_ASSERT(sched->stats.under_way_count > 0);
    for (size_t p = 0; p < ticket->part_count; p++)
        give_back_part(&ticket->parts[p]);
    ticket->state = TOW_TICKET_IDLE;
    sched->stats.finished++;
    count_under_way(sched, ticket, false);
    sched->has_room |= ticket->islands_;
}

/* -- Refusing -------------------------------------------------------------- */

/* On the first device that is short, with the sum of all parts there. */
static tow_status_t describe_shortage(const tow_ticket_t *ticket)
{
    tow_status_t status = TOW_OK;
    for (size_t p = 0; p < ticket->part_count && status == TOW_OK; p++) {
        const tow_placement_t *placement = ticket->parts[p].placement;
        for (size_t i = 0; i < placement->device_count; i++) {
            tow_account_t *account = placement->accounts[i];
            share_t share = add_share(account, &ticket->parts[p]);
            if (tow_account_fits(account, share.bytes)) continue;
            status = tow_placement_refusal_at(placement, i, share.bytes);
            break;
        }
    }
    clear_shares(ticket);
    TOW_ASSERT(status != TOW_OK);
    return status;
}

static tow_status_t describe_refusal(const tow_ticket_t *ticket)
{
    const tow_placement_t *lost = lost_placement(ticket);
    if (lost != NULL) return tow_status_retain(lost->error);
    return tow_status_annotate(describe_shortage(ticket),
                               "nothing is under way that could make room");
}

static void refuse(tow_sched_t *sched, tow_ticket_t *ticket)
{
    tow_status_t status = describe_refusal(ticket);
    ticket->place_ = TICKET_ASIDE;
    tow_sched_dequeue(sched, ticket);
    sched->stats.refused++;
    sched->options.refuse(sched->options.context, ticket, status);
}

/* -- Waiting --------------------------------------------------------------- */

static bool is_anything_under_way(const tow_sched_t *sched, island_set_t set)
{
    while (set != 0)
        if (sched->islands[tow_sched_island_take(&set)].stats.under_way_count >
            0)
            return true;
    return false;
}

static tow_sched_queue_t *client_of(const tow_list_t *waiting)
{
    return TOW_CONTAINER_OF(waiting, tow_sched_queue_t, waiting);
}

static void mark_devices(tow_sched_t *sched, const tow_ticket_t *ticket)
{
    sched->waited |= ticket->islands_;
    for (size_t p = 0; p < ticket->part_count; p++) {
        tow_placement_t *placement = ticket->parts[p].placement;
        if (is_claimed(sched, placement)) continue;
        if ((placement->islands & (placement->islands - 1)) == 0)
            placement->claim_ = walk_of(sched, placement->accounts[0]);
        for (size_t i = 0; i < placement->device_count; i++) {
            tow_account_t *account = placement->accounts[i];
            account->claim_ = walk_of(sched, account);
        }
    }
}

/* All waiting tickets were chosen before it. */
static void wait_for_run_ahead(tow_sched_t *sched, tow_ticket_t *ticket)
{
    mark_devices(sched, ticket);
    for (size_t i = 0; i < ticket->link_count_; i++) {
        tow_sched_queue_t *queue = ticket->links_[i].queue;
        island_t *island = &sched->islands[queue->island];
        queue->order = ticket->order_;
        TOW_ASSERT(tow_list_is_empty(&island->waiting) ||
                   client_of(island->waiting.previous)->order < queue->order);
        tow_list_append(&island->waiting, &queue->waiting);
        island->stats.run_ahead_count++;
    }
    ticket->place_ = TICKET_WAITING;
}

static void wait_for_memory(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT((sched->closed & ticket->islands_) == 0);
    sched->closed |= ticket->islands_;
    for (island_set_t set = ticket->islands_; set != 0;)
        sched->islands[tow_sched_island_take(&set)].chosen = ticket;
}

/* Asks for memory even if tickets are under way: their memory may not be
 * enough. */
static bool is_room_coming(tow_sched_t *sched, tow_ticket_t *ticket)
{
    const tow_sched_options_t *options = &sched->options;
    bool is_made = options->make_room != NULL &&
                   options->make_room(options->context, ticket);
    return is_made || is_anything_under_way(sched, ticket->islands_);
}

/* Decides on a chosen ticket that is on no list and does not wait for
 * run-ahead. */
static void decide(tow_sched_t *sched, tow_ticket_t *ticket, verdict_t verdict)
{
    ticket->place_ = TICKET_CHOSEN;
    if (verdict == CAN_BE_GRANTED)
        grant(sched, ticket);
    else if (verdict == WAITS_FOR_MEMORY && is_room_coming(sched, ticket))
        wait_for_memory(sched, ticket);
    else
        refuse(sched, ticket);
}

/* The same for a ticket without a verdict yet. */
static void serve(tow_sched_t *sched, tow_ticket_t *ticket)
{
    verdict_t verdict = examine(sched, ticket);
    if (verdict == WAITS_FOR_RUN_AHEAD)
        wait_for_run_ahead(sched, ticket);
    else
        decide(sched, ticket, verdict);
}

/* -- Scanning the waiting tickets ------------------------------------------ */

static island_set_t islands_of_those_waiting(const island_t *island)
{
    island_set_t set = island->chosen != NULL ? island->chosen->islands_ : 0;
    for (const tow_list_t *item = island->waiting.next;
         item != &island->waiting; item = item->next)
        set |= tow_sched_first_ticket(client_of(item))->islands_;
    return set;
}

/* A ticket that waits on several islands has marked devices on all of them:
 * they are scanned together. */
static island_set_t joined_islands(const tow_sched_t *sched, island_set_t set)
{
    island_set_t unseen = sched->spanning_count > 0 ? set : 0;
    while (unseen != 0) {
        const island_t *island =
            &sched->islands[tow_sched_island_take(&unseen)];
        island_set_t more = islands_of_those_waiting(island) & ~set;
        set |= more;
        unseen |= more;
    }
    return set;
}

static void begin_walk(tow_sched_t *sched, island_set_t set)
{
    sched->scan_last++;
    while (set != 0) {
        uint32_t number = tow_sched_island_take(&set);
        island_t *island = &sched->islands[number];
        island->scan = sched->scan_last;
        island->unseen = island->waiting.next;
        if (tow_list_is_empty(&island->waiting))
            sched->waited &= ~tow_sched_island_bit(number);
    }
}

static void serve_those_short_of_memory(tow_sched_t *sched, island_set_t set)
{
    for (;;) {
        tow_ticket_t *oldest = NULL;
        for (island_set_t closed = set & sched->closed; closed != 0;) {
            tow_ticket_t *ticket =
                sched->islands[tow_sched_island_take(&closed)].chosen;
            if (oldest == NULL || ticket->order_ < oldest->order_)
                oldest = ticket;
        }
        if (oldest == NULL) return;
        set &= ~oldest->islands_;
        tow_sched_unchoose(sched, oldest);
        serve(sched, oldest);
    }
}

/* Of islands where no ticket lacks memory: on the others no other ticket is
 * visited. */
static tow_ticket_t *take_oldest_unseen(tow_sched_t *sched, island_set_t set)
{
    const tow_sched_queue_t *oldest = NULL;
    for (set &= ~sched->closed; set != 0;) {
        const island_t *island = &sched->islands[tow_sched_island_take(&set)];
        if (island->unseen == &island->waiting) continue;
        const tow_sched_queue_t *queue = client_of(island->unseen);
        if (oldest == NULL || queue->order < oldest->order) oldest = queue;
    }
    if (oldest == NULL) return NULL;
    tow_ticket_t *ticket = tow_sched_first_ticket(oldest);
    for (size_t i = 0; i < ticket->link_count_; i++) {
        const tow_sched_queue_t *queue = ticket->links_[i].queue;
        island_t *island = &sched->islands[queue->island];
        if (island->unseen == &queue->waiting)
            island->unseen = queue->waiting.next;
    }
    return ticket;
}

static void look_again(tow_sched_t *sched, tow_ticket_t *ticket)
{
    verdict_t verdict = examine(sched, ticket);
    if (TOW_LIKELY(verdict == WAITS_FOR_RUN_AHEAD)) {
        mark_devices(sched, ticket);
    } else {
        tow_sched_unchoose(sched, ticket);
        decide(sched, ticket, verdict);
    }
}

/* Owners may withdraw any ticket during a grant, so a scan keeps only the list
 * of tickets not yet visited. */
static void retry_those_that_wait(tow_sched_t *sched)
{
    island_set_t set = joined_islands(
        sched, sched->has_room & (sched->waited | sched->closed));
    sched->has_room = 0;
    if (TOW_LIKELY(set == 0)) return; /* No ticket waits. */
    begin_walk(sched, set);
    serve_those_short_of_memory(sched, set);
    for (tow_ticket_t *ticket;
         (ticket = take_oldest_unseen(sched, set)) != NULL;)
        look_again(sched, ticket);
}

/* -- Choosing -------------------------------------------------------------- */

typedef struct choice {
    tow_sched_queue_t *queue; /* NULL: none */
    size_t index;             /* in its ready list */
} choice_t;

static choice_t ask_policy(const tow_sched_t *sched, uint32_t island)
{
    const tow_sched_policy_t *policy = sched->options.policy;
    const ready_list_t *ready = &sched->islands[island].ready;
    tow_sched_queue_t *const *queues = tow_ready_list_queues(ready);
    size_t index =
        policy->choose(policy->context,
                       (const tow_sched_queue_t *const *)queues, ready->count);
    TOW_ASSERT(index < ready->count);
    return (choice_t){queues[index], index};
}

/* NULL when no queue is left, or all wait for one ticket. */
static tow_ticket_t *choose(tow_sched_t *sched)
{
    choice_t oldest = {0};
    for (island_set_t set = sched->ready & ~sched->closed; set != 0;) {
        choice_t one = ask_policy(sched, tow_sched_island_take(&set));
        if (oldest.queue == NULL || one.queue->arrival < oldest.queue->arrival)
            oldest = one;
    }
    if (oldest.queue == NULL) return NULL;
    tow_ticket_t *ticket = tow_sched_first_ticket(oldest.queue);
    if (TOW_LIKELY(ticket->link_count_ == 1)) {
        ready_list_t *ready = &sched->islands[oldest.queue->island].ready;
        (void)!tow_ready_list_take(ready, oldest.index);
        if (ready->count == 0) sched->ready &= ~ticket->islands_;
    } else {
        tow_sched_unready(sched, ticket);
    }
    ticket->order_ = ++sched->order_last;
    return ticket;
}

void tow_sched_pass(tow_sched_t *sched)
{
    TOW_ASSERT(!sched->is_in_pass);
    sched->is_in_pass = true;
    for (;;) {
        if (sched->has_room != 0) retry_those_that_wait(sched);
        tow_ticket_t *ticket = choose(sched);
        if (ticket != NULL)
            serve(sched, ticket);
        else if (sched->has_room == 0)
            break;
    }
    sched->is_in_pass = false;
}
