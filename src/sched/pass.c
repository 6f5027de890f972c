/* A scheduling pass: grants all pieces that can be granted, in one order for the
 * whole cluster.
 *
 * Two devices that start gangs A and B in different orders wait for each other
 * inside their collectives for ever, so the order is decided once, here, and
 * never per device.
 *
 * A *scan* of islands begins when something was freed there: all tickets that
 * wait are ready again, and the policy is asked about them, one after the other.
 * The first one that cannot be granted becomes the head of its islands. Its
 * devices are marked: no ticket may take them in this scan. Otherwise a gang of
 * many devices would wait for ever behind small gangs that never leave all of
 * its queues short at once. Tickets that are submitted later are part of the
 * scan.
 *
 * Why every ready ticket is granted or refused in the end, if the policy is
 * fair. A granted piece can run: it needs nothing but pieces that were granted
 * before it, since the steps of a run are granted in an order in which each
 * comes after its inputs, and no transfer or collective is divided. Of all
 * pieces granted and not ended, the one with the lowest number has no other
 * before it on any of its devices, on any island. So all granted pieces end.
 *   - A ticket that is granted in part needs no memory. It waits for room in
 *     device queues, hence for pieces under way, and for heads.
 *   - A ticket that waits for memory waits for granted tickets. These go on,
 *     also on islands that are closed for new ones, and before all new tickets,
 *     so that they never wait for one that waits for the closed island; when
 *     they have finished it is granted or refused.
 *   - Islands with a common ticket are scanned together, so the first ticket of
 *     a scan that cannot be granted is the head of all its islands, and waits
 *     only for pieces under way and for memory. In the next scan the policy may
 *     prefer others, overtaken_max times; then it goes first.
 *   - A ticket that waits for another to be granted completely (is_held) waits
 *     for an earlier one of its client, so the first of these waits for none. */
#include "base/assert.h"
#include "sched/sched_impl.h"

/* A ticket in a ready list. */
typedef struct choice {
    tow_ticket_t *ticket; /* NULL: none */
    uint32_t island;
    size_t index; /* among those there that do not wait */
} choice_t;

/* -- Granting -------------------------------------------------------------- */

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

/* The former heads of its islands still wait. */
static void count_overtaken(tow_sched_t *sched, const tow_ticket_t *ticket)
{
    for (size_t i = 0; i < ticket->link_count_; i++) {
        tow_ticket_t *former =
            sched->islands[ticket->links_[i].island].former_head;
        if (former != NULL && former != ticket) former->overtaken_++;
    }
}

/* Its first piece: the next ticket of its client is ready before the owner is
 * called, who may submit and withdraw. */
static void begin(tow_sched_t *sched, tow_ticket_t *ticket)
{
    tow_sched_dequeue(sched, ticket);
    sched->stats.granted++;
    count_under_way(sched, ticket, true);
}

static void leave_partly(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(sched->stats.partly_count > 0);
    /* Those that it held may be on any island. */
    sched->has_room |= ticket->islands_ | sched->held;
    sched->stats.partly_count--;
}

/* After the call of the owner, who may have stopped it. */
static void relist(tow_sched_t *sched, tow_ticket_t *ticket)
{
    if (ticket->state != TOW_TICKET_PARTLY || ticket->place_ != TICKET_ASIDE ||
        ticket->piece_count_ == TOW_SCHED_PIECES_MAX)
        return;
    ticket->arrival_ = ++sched->arrival_last;
    ticket->overtaken_ = 0;
    tow_sched_list(sched, ticket);
}

/* It is in no list. */
static void grant(tow_sched_t *sched, tow_ticket_t *ticket)
{
    const tow_sched_policy_t *policy = sched->options.policy;
    const bool was_partly = ticket->state == TOW_TICKET_PARTLY;
    const bool is_last =
        ticket->next.step_counts == NULL || ticket->next.is_last;
    ticket->place_ = TICKET_ASIDE;
    if (TOW_UNLIKELY((sched->headed & ticket->islands_) != 0))
        count_overtaken(sched, ticket);
    if (!was_partly) begin(sched, ticket);
    ticket->state = is_last ? TOW_TICKET_GRANTED : TOW_TICKET_PARTLY;
    if (!is_last && !was_partly) sched->stats.partly_count++;
    if (is_last && was_partly) leave_partly(sched, ticket);
    tow_sched_take_piece(sched, ticket, !was_partly);
    ticket->number = ++sched->number_last;
    sched->stats.piece_count++;
    if (policy->served != NULL) policy->served(policy->context, ticket);
    sched->options.grant(sched->options.context, ticket);
    if (TOW_UNLIKELY(!is_last)) relist(sched, ticket);
}

/* -- Ending ---------------------------------------------------------------- */

void tow_sched_piece_ended(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT(ticket->state == TOW_TICKET_PARTLY ||
               ticket->state == TOW_TICKET_GRANTED);
    tow_sched_give_back_piece(sched, ticket, false);
    sched->has_room |= ticket->islands_;
    relist(sched, ticket);
}

void tow_sched_stop(tow_sched_t *sched, tow_ticket_t *ticket)
{
    if (ticket->state != TOW_TICKET_PARTLY) return;
    if (ticket->place_ == TICKET_LISTED) tow_sched_unlist(sched, ticket);
    ticket->state = TOW_TICKET_GRANTED;
    leave_partly(sched, ticket);
}

void tow_sched_finish(tow_sched_t *sched, tow_ticket_t *ticket)
{
    tow_sched_stop(sched, ticket);
    TOW_ASSERT(ticket->state == TOW_TICKET_GRANTED);
    TOW_ASSERT(sched->stats.under_way_count > 0);
    tow_sched_give_back(sched, ticket);
    ticket->state = TOW_TICKET_IDLE;
    sched->stats.finished++;
    count_under_way(sched, ticket, false);
    sched->has_room |= ticket->islands_;
}

/* -- Decisions ------------------------------------------------------------- */

static void refuse(tow_sched_t *sched, tow_ticket_t *ticket)
{
    tow_status_t status = tow_sched_describe_refusal(ticket);
    ticket->place_ = TICKET_ASIDE;
    tow_sched_dequeue(sched, ticket);
    sched->stats.refused++;
    sched->options.refuse(sched->options.context, ticket, status);
}

static bool is_anything_under_way(const tow_sched_t *sched, island_set_t set)
{
    while (set != 0)
        if (sched->islands[tow_sched_island_take(&set)].stats.under_way_count >
            0)
            return true;
    return false;
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

static void wait_for_memory(tow_sched_t *sched, tow_ticket_t *ticket)
{
    TOW_ASSERT((sched->closed & ticket->islands_) == 0);
    sched->closed |= ticket->islands_;
    for (island_set_t set = ticket->islands_; set != 0;)
        sched->islands[tow_sched_island_take(&set)].chosen = ticket;
}

/* Decides on a ticket that is in no list and need not wait for room. */
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

/* The first of a scan that waits for room on all its islands. */
static void become_head(tow_sched_t *sched, tow_ticket_t *ticket)
{
    for (size_t i = 0; i < ticket->link_count_; i++)
        if (sched->islands[ticket->links_[i].island].head != NULL) return;
    for (size_t i = 0; i < ticket->link_count_; i++)
        sched->islands[ticket->links_[i].island].head = ticket;
    tow_sched_mark_devices(sched, ticket);
}

/* Removes it from the ready lists. */
static void take(tow_sched_t *sched, choice_t choice)
{
    tow_ticket_t *ticket = choice.ticket;
    island_t *island = &sched->islands[choice.island];
    if (TOW_UNLIKELY(ticket->link_count_ > 1)) {
        tow_sched_unlist(sched, ticket);
        return;
    }
    ticket->place_ = TICKET_ASIDE;
    tow_ready_list_take(&island->ready, choice.index);
    tow_sched_note_taken(sched, choice.island);
    tow_sched_forget_head(island, ticket);
}

static void wait_on(tow_sched_t *sched, uint32_t number, size_t index)
{
    if (index == SIZE_MAX) return; /* It waits there. */
    tow_ready_list_set_waiting(&sched->islands[number].ready, index);
    tow_sched_note_taken(sched, number);
}

/* It waits until its islands are reopened. */
static void set_waiting(tow_sched_t *sched, choice_t choice)
{
    const tow_ticket_t *ticket = choice.ticket;
    sched->waited |= ticket->islands_;
    wait_on(sched, choice.island, choice.index);
    if (TOW_LIKELY(ticket->link_count_ == 1)) return;
    for (size_t i = 0; i < ticket->link_count_; i++) {
        const uint32_t island = ticket->links_[i].island;
        if (island == choice.island) continue;
        wait_on(sched, island,
                tow_ready_list_find(&sched->islands[island].ready, ticket));
    }
}

/* It needs the very devices that the head has marked: no look at each of them.
 * Under load that is most tickets. */
static bool is_behind_head(const tow_sched_t *sched, choice_t choice)
{
    const tow_ticket_t *ticket = choice.ticket;
    const island_t *island = &sched->islands[choice.island];
    return island->head != NULL && ticket->part_count == 1 &&
           ticket->state == TOW_TICKET_QUEUED &&
           ticket->parts[0].placement->claim_ == island->scan;
}

static void serve(tow_sched_t *sched, choice_t choice)
{
    tow_ticket_t *ticket = choice.ticket;
    if (is_behind_head(sched, choice)) {
        set_waiting(sched, choice);
        return;
    }
    const verdict_t verdict = tow_sched_examine(sched, ticket);
    if (verdict == WAITS_FOR_ROOM || verdict == WAITS_FOR_OTHERS) {
        set_waiting(sched, choice);
        if (verdict == WAITS_FOR_ROOM)
            become_head(sched, ticket);
        else
            sched->held |= ticket->islands_;
        return;
    }
    take(sched, choice);
    decide(sched, ticket, verdict);
}

/* One that does not wait. */
static void serve_listed(tow_sched_t *sched, tow_ticket_t *ticket)
{
    const uint32_t island = ticket->links_[0].island;
    const size_t index =
        tow_ready_list_find(&sched->islands[island].ready, ticket);
    serve(sched, (choice_t){ticket, island, index});
}

/* -- Scans ----------------------------------------------------------------- */

static island_set_t islands_of_those_waiting(const island_t *island)
{
    const ready_list_t *ready = &island->ready;
    island_set_t set = island->chosen != NULL ? island->chosen->islands_ : 0;
    for (size_t i = 0; i < ready->count; i++)
        set |= ready->items[ready->begin + i]->islands_;
    return set;
}

/* A ticket that waits on several islands may be the head of all of them: they
 * are scanned together. */
static island_set_t joined_islands(const tow_sched_t *sched, island_set_t set)
{
    island_set_t unseen =
        sched->spanning_count > 0 || sched->closed != 0 ? set : 0;
    while (unseen != 0) {
        const island_t *island =
            &sched->islands[tow_sched_island_take(&unseen)];
        const island_set_t more = islands_of_those_waiting(island) & ~set;
        set |= more;
        unseen |= more;
    }
    return set;
}

static void serve_those_short_of_memory(tow_sched_t *sched, island_set_t set)
{
    for (;;) {
        tow_ticket_t *oldest = NULL;
        for (island_set_t closed = set & sched->closed; closed != 0;) {
            tow_ticket_t *ticket =
                sched->islands[tow_sched_island_take(&closed)].chosen;
            if (oldest == NULL || ticket->arrival_ < oldest->arrival_)
                oldest = ticket;
        }
        if (oldest == NULL) return;
        set &= ~oldest->islands_;
        tow_sched_unchoose(sched, oldest);
        tow_sched_list(sched, oldest);
        serve_listed(sched, oldest);
    }
}

static bool must_go_first(const tow_sched_t *sched, const tow_ticket_t *former)
{
    return former->overtaken_ >= sched->options.overtaken_max &&
           former->place_ == TICKET_LISTED &&
           (former->islands_ & sched->closed) == 0;
}

/* Heads that were overtaken too often go before those that the policy
 * prefers. */
static void serve_overtaken(tow_sched_t *sched, island_set_t set)
{
    while (set != 0) {
        tow_ticket_t *former =
            sched->islands[tow_sched_island_take(&set)].former_head;
        if (TOW_UNLIKELY(former != NULL && must_go_first(sched, former)))
            serve_listed(sched, former);
    }
}

/* Where tickets wait. */
static void begin_scan(tow_sched_t *sched)
{
    const island_set_t set = joined_islands(
        sched, sched->has_room & (sched->waited | sched->closed));
    sched->has_room = 0;
    if (TOW_LIKELY(set == 0)) return;
    tow_sched_reopen(sched, set);
    if (TOW_UNLIKELY((sched->closed & set) != 0))
        serve_those_short_of_memory(sched, set);
    serve_overtaken(sched, set);
}

/* -- Choosing -------------------------------------------------------------- */

static choice_t ask_policy(const tow_sched_t *sched, uint32_t island)
{
    const tow_sched_policy_t *policy = sched->options.policy;
    const ready_list_t *ready = &sched->islands[island].ready;
    tow_ticket_t *const *tickets = tow_ready_list_tickets(ready);
    const size_t count = tow_ready_list_count(ready);
    const size_t index = policy->choose(
        policy->context, (const tow_ticket_t *const *)tickets, count);
    TOW_ASSERT(index < count);
    return (choice_t){tickets[index], island, index};
}

/* On an island where a ticket waits for memory, only those that are granted in
 * part go on. */
static choice_t first_partly(const tow_sched_t *sched, uint32_t island)
{
    const ready_list_t *ready = &sched->islands[island].ready;
    tow_ticket_t *const *tickets = tow_ready_list_tickets(ready);
    for (size_t i = 0; i < tow_ready_list_count(ready); i++)
        if (tickets[i]->state == TOW_TICKET_PARTLY)
            return (choice_t){tickets[i], island, i};
    return (choice_t){0};
}

static choice_t older(choice_t one, choice_t other)
{
    if (one.ticket == NULL) return other;
    return other.ticket != NULL && other.ticket->arrival_ < one.ticket->arrival_
               ? other
               : one;
}

static choice_t choose_where_closed(const tow_sched_t *sched)
{
    choice_t oldest = {0};
    for (island_set_t set = sched->ready & sched->closed; set != 0;)
        oldest =
            older(oldest, first_partly(sched, tow_sched_island_take(&set)));
    return oldest;
}

static choice_t choose_where_open(const tow_sched_t *sched)
{
    choice_t oldest = {0};
    for (island_set_t set = sched->ready & ~sched->closed; set != 0;)
        oldest = older(oldest, ask_policy(sched, tow_sched_island_take(&set)));
    return oldest;
}

/* The oldest of the choices of all islands; on closed islands first: a new
 * ticket that spans to one waits for memory that tickets granted in part have
 * there, so they must not find its marks. */
static choice_t choose(const tow_sched_t *sched)
{
    choice_t choice = {0};
    if (TOW_UNLIKELY(sched->closed != 0)) choice = choose_where_closed(sched);
    return TOW_LIKELY(choice.ticket == NULL) ? choose_where_open(sched)
                                             : choice;
}

void tow_sched_pass(tow_sched_t *sched)
{
    TOW_ASSERT(!sched->is_in_pass);
    sched->is_in_pass = true;
    for (;;) {
        if (sched->has_room != 0) begin_scan(sched);
        const choice_t choice = choose(sched);
        if (choice.ticket != NULL)
            serve(sched, choice);
        else if (sched->has_room == 0)
            break;
    }
    sched->is_in_pass = false;
}
